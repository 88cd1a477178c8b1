//! Parsing of single queries and batches of queries, and hashing of their blocks.

mod members;
mod prompt;
mod scope;

use kvatlas_wire::Identity;

use self::members::{given_twice, missing};
use self::prompt::Prompt;
pub(crate) use self::prompt::{Kind, Scratch};
pub(crate) use self::scope::Scope;
use crate::answer::Refusal;
use crate::json::Reader;

/// Maximum number of prompts in a batch query.
const MAX_BATCH: usize = 1024;

type Result<T> = std::result::Result<T, Refusal>;

/// Parsed queries of one HTTP request: one or several prompts with a common scope.
pub(crate) struct Queries<'a> {
    pub(crate) scope: Scope<'a>,
    prompts: Vec<Prompt<'a>>,
}

impl Queries<'_> {
    /// Returns the number of prompts in the request.
    pub(crate) fn len(&self) -> usize {
        self.prompts.len()
    }

    /// Returns the maximum number of leading blocks of a prompt that an engine can reuse: the full blocks before the
    /// last token, which is always computed. `None` if the length of the prompt is unknown.
    pub(crate) fn cap(&self, at: usize, block_size: u32) -> Option<u32> {
        let tokens = self.prompts.get(at)?.tokens?;
        Some(u32::try_from(tokens.saturating_sub(1) / u64::from(block_size)).unwrap_or(u32::MAX))
    }

    /// Sets the LoRA adapter of all prompts, because the query named the adapter as its model. Refused if a prompt
    /// names another adapter.
    pub(crate) fn adapt(&mut self, adapter: &str) -> Result<()> {
        let Self { scope, prompts } = self;
        let several = prompts.len() > 1;
        // Content hashes already include their adapter.
        for (at, prompt) in prompts.iter_mut().enumerate().filter(|(_, prompt)| prompt.kind == Kind::Tokens) {
            match prompt.lora.as_deref() {
                None => prompt.lora = Some(adapter.to_owned().into()),
                Some(same) if same == adapter => {}
                Some(other) => {
                    let message = format!(
                        "model_name {:?} is an adapter, but lora_name gives another one, {other:?}",
                        scope.model
                    );
                    let refusal = Refusal::invalid("ambiguous_query", message);
                    return Err(if several { refusal.at(format_args!("queries[{at}]")) } else { refusal });
                }
            }
        }
        Ok(())
    }

    /// Returns the tokens of one prompt, with its LoRA adapter and cache salt; `None` if the prompt is given by content
    /// hashes.
    pub(crate) fn tokens<'s>(
        &'s self,
        at: usize,
        scratch: &'s Scratch,
    ) -> Option<(&'s [u32], Option<&'s str>, Option<&'s str>)> {
        let Prompt { kind, range, lora, salt, .. } = &self.prompts[at];
        (*kind == Kind::Tokens).then(|| (&scratch.tokens[range.clone()], lora.as_deref(), salt.as_deref()))
    }

    /// True if a query has tokens.
    pub(crate) fn has_tokens(&self, at: usize) -> bool {
        self.prompts[at].kind == Kind::Tokens
    }

    /// Returns the number of prompts that are given by content hashes instead of tokens.
    pub(crate) fn hashed(&self) -> usize {
        self.prompts.iter().filter(|prompt| prompt.kind == Kind::Hashes).count()
    }

    /// Checks that all prompts are given by tokens.
    ///
    /// # Errors
    /// A refusal that names the first prompt given by content hashes.
    pub(crate) fn check_tokens(&self) -> Result<()> {
        let Some(at) = self.prompts.iter().position(|prompt| prompt.kind == Kind::Hashes) else { return Ok(()) };
        let refusal = Refusal::keyed_identity("ask with token_ids");
        Err(if self.prompts.len() > 1 { refusal.at(format_args!("queries[{at}]")) } else { refusal })
    }

    /// Returns the content hashes of one prompt's blocks, computed from its tokens if necessary.
    pub(crate) fn content<'s>(
        &self,
        at: usize,
        block_size: u32,
        identity: &Identity,
        scratch: &'s mut Scratch,
    ) -> &'s [u64] {
        let Scratch { tokens, hashes, content } = scratch;
        let Prompt { kind, range, lora, salt, .. } = &self.prompts[at];
        match kind {
            Kind::Hashes => &hashes[range.clone()],
            Kind::Tokens => {
                let tokens = &tokens[range.clone()];
                content.resize(tokens.len() / block_size as usize, 0);
                identity.words_into(tokens, block_size as usize, lora.as_deref(), salt.as_deref(), content);
                content
            }
        }
    }

    /// Calls `f` with the content hashes of each prompt's blocks.
    pub(crate) fn each(&self, block_size: u32, identity: &Identity, scratch: &mut Scratch, mut f: impl FnMut(&[u64])) {
        for at in 0..self.len() {
            f(self.content(at, block_size, identity, scratch));
        }
    }
}

/// Body of a query for one prompt.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Body<'a> {
    /// Complete query as JSON.
    Json(&'a [u8]),
    /// Prompt as little-endian integers (tokens or content hashes), with the other members of the query as URL
    /// parameters.
    Bytes { parameters: &'a str, blocks: &'a [u8] },
}

/// Parses a query for one prompt, which is given by tokens (for `/query`) or content hashes (for `/query_by_hash`).
pub(crate) fn single<'a>(body: Body<'a>, kind: Kind, scratch: &mut Scratch) -> Result<Queries<'a>> {
    let (mut scope, mut prompt) = (scope::PartialScope::default(), prompt::PartialPrompt::default());
    match body {
        Body::Json(body) => {
            let mut reader = Reader::new(body);
            reader.object("the body", |reader, key| {
                let known = scope.member(reader, key)?
                    || scope.detail(reader, key)?
                    || prompt.member(reader, key, Some(kind), scratch)?;
                if known { Ok(()) } else { reader.skip() }
            })?;
            reader.end()?;
        }
        Body::Bytes { parameters, blocks } => {
            members::read(parameters, &mut scope, &mut prompt, kind)?;
            prompt.bytes(blocks, kind, scratch)?;
        }
    }
    Ok(Queries { scope: scope.finish()?, prompts: vec![prompt.finish(kind.member())?] })
}

/// Parses a query for a batch of prompts.
pub(crate) fn batch<'a>(body: &'a [u8], scratch: &mut Scratch) -> Result<Queries<'a>> {
    let mut scope = scope::PartialScope::default();
    let mut prompts = None;
    let mut reader = Reader::new(body);
    reader.object("the body", |reader, key| {
        if scope.member(reader, key)? {
            return Ok(());
        }
        if key != "queries" {
            return reader.skip();
        }
        if prompts.is_some() {
            return Err(given_twice(key));
        }
        let mut list = Vec::new();
        reader.array("queries", |reader, at| {
            if at == MAX_BATCH {
                let message = format!("a batch has at most {MAX_BATCH} queries");
                return Err(Refusal::invalid("too_many_queries", message));
            }
            let prompt = one_of_batch(reader, scratch);
            list.push(prompt.map_err(|refusal| refusal.at(format_args!("queries[{at}]")))?);
            Ok(())
        })?;
        prompts = Some(list);
        Ok(())
    })?;
    reader.end()?;
    Ok(Queries { scope: scope.finish()?, prompts: prompts.ok_or_else(|| missing("queries"))? })
}

fn one_of_batch<'a>(reader: &mut Reader<'a>, scratch: &mut Scratch) -> Result<Prompt<'a>> {
    let mut prompt = prompt::PartialPrompt::default();
    reader.object(
        "a query",
        |reader, key| {
            if prompt.member(reader, key, None, scratch)? { Ok(()) } else { reader.skip() }
        },
    )?;
    prompt.finish("token_ids or content_hashes")
}

#[cfg(test)]
mod tests {
    use kvatlas_index::hash::content_hashes;

    use super::*;

    fn hashed(asked: &Queries<'_>, scratch: &mut Scratch) -> Vec<Vec<u64>> {
        let mut all = Vec::new();
        asked.each(4, &Identity::public(), scratch, |content| all.push(content.to_vec()));
        all
    }

    #[test]
    fn a_query_in_any_order_of_its_members() {
        let tokens: Vec<u32> = (0..9).collect();
        let expected = content_hashes(&tokens, 4, Some("a"), Some("s"));
        let members = [
            r#""token_ids":[0,1,2,3,4,5,6,7,8]"#,
            r#""lora_name":"a""#,
            r#""cache_salt":"s""#,
            r#""model_name":"m""#,
            r#""top_k":3"#,
            r#""among":[7,"x"]"#,
            r#""unknown":{"a":[1,{}]}"#,
        ];
        for first in 0..members.len() {
            let mut turned = members.to_vec();
            turned.rotate_left(first);
            let body = format!("{{{}}}", turned.join(","));
            Scratch::with(|scratch| {
                let asked = single(Body::Json(body.as_bytes()), Kind::Tokens, scratch).expect("a query");
                assert_eq!(
                    (&*asked.scope.model, asked.scope.routing_group(), asked.scope.top_k),
                    ("m", "default", Some(3))
                );
                assert_eq!(asked.scope.among, Some(vec!["7".to_owned(), "x".to_owned()]));
                assert_eq!(hashed(&asked, scratch), std::slice::from_ref(&expected));
            });
        }
    }

    #[test]
    fn a_batch_keeps_its_prompts_apart() {
        let body =
            br#"{"queries":[{"token_ids":[1,2,3,4]},{"content_hashes":[5,-1]},{"token_ids":[1,2,3,4],"lora_name":"a"},
            {"token_ids":[]},{"block_hashes":[]}],"model_name":"m"}"#;
        Scratch::with(|scratch| {
            let asked = batch(body, scratch).expect("a batch");
            let tokens = [1, 2, 3, 4];
            let plain = content_hashes(&tokens, 4, None, None);
            let adapted = content_hashes(&tokens, 4, Some("a"), None);
            assert_eq!(hashed(&asked, scratch), [plain, vec![5, u64::MAX], adapted, vec![], vec![]]);
        });
    }

    #[test]
    fn refusals_name_the_query() {
        for (query, code) in [
            ("{}", "wrong_type"),
            (r#"{"token_ids":[-1]}"#, "wrong_type"),
            (r#"{"token_ids":[1],"content_hashes":[1]}"#, "ambiguous_query"),
            (r#"{"token_ids":[1],"block_hashes":[1]}"#, "ambiguous_query"),
            (r#"{"content_hashes":[1],"block_hashes":[1]}"#, "ambiguous_query"),
            (r#"{"content_hashes":[1],"content_hashes":[1]}"#, "wrong_type"),
            (r#"{"content_hashes":[1],"cache_salt":"s"}"#, "salted_hashes"),
            (r#"{"block_hashes":[1],"lora_name":"a"}"#, "salted_hashes"),
            ("7", "wrong_type"),
            (r#"{"token_ids":[1}"#, "malformed_json"),
        ] {
            let body = format!(r#"{{"model_name":"m","queries":[{{"token_ids":[1]}},{query}]}}"#);
            let refusal = Scratch::with(|scratch| batch(body.as_bytes(), scratch).err()).expect("refused");
            assert_eq!(refusal.code, code, "{query}");
            assert!(refusal.message.starts_with("queries[1]: "), "{}", refusal.message);
        }
    }

    #[test]
    fn refusals_say_what_would_be_right() {
        for (members, wanted) in [
            (r#""among":[1.5]"#, "an item of among must be an integer from 0 to 18446744073709551615, at byte"),
            (r#""top_k":"a""#, "top_k must be an integer from 0 to 18446744073709551615, at byte"),
            (r#""token_ids":[-1]"#, "token_ids must be a list, each item an integer from 0 to 4294967295, at byte"),
        ] {
            let body = format!("{{{members}}}");
            let refusal = Scratch::with(|scratch| single(Body::Json(body.as_bytes()), Kind::Tokens, scratch).err());
            let message = refusal.expect("refused").message;
            assert!(message.starts_with(wanted), "{message}");
        }
    }

    #[test]
    fn bytes_ask_the_same_as_json() {
        let tokens: Vec<u32> = vec![0, 1, u32::MAX, 0x0102_0304, 7, 8, 9, 10, 11];
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let parameters = "model_name=m%2F1&routing_group=g+1&lora_name=%C3%A9&cache_salt=a%26b%3D%2B&top_k=3\
                          &among=7&among=a%20b&levels=true&age=false&";
        let json = r#"{"model_name":"m/1","routing_group":"g 1","lora_name":"é","cache_salt":"a&b=+","top_k":3,
            "among":[7,"a b"],"levels":true,"age":false,"token_ids":[0,1,4294967295,16909060,7,8,9,10,11]}"#;
        let [json, bytes] = [Body::Json(json.as_bytes()), Body::Bytes { parameters, blocks: &bytes }].map(|body| {
            Scratch::with(|scratch| {
                let asked = single(body, Kind::Tokens, scratch).expect("a query");
                (format!("{:?}", asked.scope), hashed(&asked, scratch))
            })
        });
        assert_eq!(bytes, json);
        assert_eq!(bytes.1, [content_hashes(&tokens, 4, Some("é"), Some("a&b=+"))]);

        let hashes = [1u64, u64::MAX, 0x0102_0304_0506_0708];
        let blocks: Vec<u8> = hashes.iter().flat_map(|hash| hash.to_le_bytes()).collect();
        Scratch::with(|scratch| {
            let body = Body::Bytes { parameters: "among=&model_name=m", blocks: &blocks };
            let asked = single(body, Kind::Hashes, scratch).expect("a query");
            assert_eq!(asked.scope.among, Some(Vec::new()), "nobody");
            assert_eq!(hashed(&asked, scratch), [hashes]);
            let body = Body::Bytes { parameters: "model_name=m", blocks: &[] };
            assert_eq!(single(body, Kind::Hashes, scratch).expect("a query").scope.among, None);
        });
    }

    #[test]
    fn bytes_that_are_refused() {
        let long = "x".repeat(2000);
        for (parameters, blocks, kind, code, words) in [
            ("", &[0; 4][..], Kind::Tokens, "wrong_type", "model_name is missing"),
            ("model_name=m", &[0; 7], Kind::Tokens, "wrong_length", "a multiple of 4 bytes, got 7 bytes"),
            ("model_name=m", &[0; 12], Kind::Hashes, "wrong_length", "a multiple of 8 bytes, got 12 bytes"),
            ("model_name=m&model_name=m", &[], Kind::Tokens, "wrong_type", "model_name is given twice"),
            ("model_name=m&cache_salt=&cache_salt=", &[], Kind::Tokens, "wrong_type", "cache_salt is given twice"),
            ("model_name=m&age=true&age=true", &[], Kind::Tokens, "wrong_type", "age is given twice"),
            ("model_name=m&age=2", &[], Kind::Tokens, "wrong_type", "age must be true or false"),
            ("model_name=m&levels", &[], Kind::Tokens, "wrong_type", "levels must be true or false"),
            ("model_name=m&top_k=", &[], Kind::Tokens, "wrong_type", "top_k must be an integer"),
            ("model_name=m&top_k=%2B1", &[], Kind::Tokens, "wrong_type", "top_k must be an integer"),
            ("model_name=m&top_k=18446744073709551616", &[], Kind::Tokens, "wrong_type", "top_k must be an integer"),
            ("model_name=m&top_k=0", &[], Kind::Tokens, "invalid_top_k", "at least 1"),
            ("model_name=m&lora=x", &[], Kind::Tokens, "unknown_parameter", r#"unknown parameter "lora""#),
            ("model_name=m&token_ids=1", &[], Kind::Tokens, "unknown_parameter", "model_name, routing_group"),
            ("model_name=m&a%0Ab", &[], Kind::Tokens, "unknown_parameter", r#"unknown parameter "a\nb""#),
            ("model_name=m&cache_salt=%F", &[], Kind::Tokens, "malformed_parameters", "percent-encoded"),
            ("model_name=m&cache_salt=%ff", &[], Kind::Tokens, "malformed_parameters", "percent-encoded"),
            ("model_name=m&cache_salt=%+1", &[], Kind::Tokens, "malformed_parameters", "percent-encoded"),
            ("model_name=m&cache_salt=s", &[], Kind::Hashes, "salted_hashes", "part of the hashes already"),
            ("model_name=m&lora_name=s", &[], Kind::Hashes, "salted_hashes", "part of the hashes already"),
            (&format!("model_name={long}"), &[], Kind::Tokens, "wrong_type", "at most 1024 bytes"),
            (&format!("model_name=m&among={long}"), &[], Kind::Tokens, "invalid_instance_id", "1 to 256 bytes"),
        ] {
            let body = Body::Bytes { parameters, blocks };
            let refusal = Scratch::with(|scratch| single(body, kind, scratch).err()).expect("refused");
            assert_eq!(refusal.code, code, "{parameters}");
            assert!(refusal.message.contains(words), "{parameters}: {}", refusal.message);
            assert!(refusal.message.len() < 300, "{}", refusal.message);
        }
    }
}
