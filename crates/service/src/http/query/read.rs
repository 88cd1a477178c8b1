//! Reads single queries and batches, and hashes their blocks.

use kvatlas_index::hash::content_hashes_into;

use super::super::json::Reader;
use super::super::refusal::Refusal;
use super::prompt::{self, Kind, Prompt};
use super::scope::{self, Scope};
use super::scratch::Scratch;
use super::seen::{given_twice, missing};

/// Queries in a batch at most.
const MAX_BATCH: usize = 1024;

type Result<T> = std::result::Result<T, Refusal>;

/// Queries as they were asked.
pub(crate) struct Asked<'a> {
    pub(crate) scope: Scope<'a>,
    prompts: Vec<Prompt<'a>>,
}

impl Asked<'_> {
    /// How many queries.
    pub(crate) fn len(&self) -> usize {
        self.prompts.len()
    }

    /// Calls `f` with the content hashes of each query.
    pub(crate) fn each(&self, block_size: u32, scratch: &mut Scratch, mut f: impl FnMut(&[u64])) {
        let Scratch { tokens, hashes, content } = scratch;
        for Prompt { kind, range, lora, salt } in &self.prompts {
            match kind {
                Kind::Hashes => f(&hashes[range.clone()]),
                Kind::Tokens => {
                    let tokens = &tokens[range.clone()];
                    content.resize(tokens.len() / block_size as usize, 0);
                    content_hashes_into(tokens, block_size as usize, lora.as_deref(), salt.as_deref(), content);
                    f(content);
                }
            }
        }
    }
}

/// A single query: of `/query` with tokens, of `/query_by_hash` with content hashes.
pub(crate) fn single<'a>(body: &'a [u8], kind: Kind, scratch: &mut Scratch) -> Result<Asked<'a>> {
    let (mut scope, mut prompt) = (scope::Reading::default(), prompt::Reading::default());
    let mut reader = Reader::new(body);
    reader.object("the body", |reader, key| {
        let known = scope.member(reader, key)?
            || scope.detail(reader, key)?
            || prompt.member(reader, key, Some(kind), scratch)?;
        if known { Ok(()) } else { reader.skip() }
    })?;
    reader.end()?;
    Ok(Asked { scope: scope.done()?, prompts: vec![prompt.done(kind.member())?] })
}

/// A batch.
pub(crate) fn batch<'a>(body: &'a [u8], scratch: &mut Scratch) -> Result<Asked<'a>> {
    let mut scope = scope::Reading::default();
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
    Ok(Asked { scope: scope.done()?, prompts: prompts.ok_or_else(|| missing("queries"))? })
}

fn one_of_batch<'a>(reader: &mut Reader<'a>, scratch: &mut Scratch) -> Result<Prompt<'a>> {
    let mut prompt = prompt::Reading::default();
    reader.object(
        "a query",
        |reader, key| {
            if prompt.member(reader, key, None, scratch)? { Ok(()) } else { reader.skip() }
        },
    )?;
    prompt.done("token_ids or content_hashes")
}

#[cfg(test)]
mod tests {
    use kvatlas_index::hash::content_hashes;

    use super::*;

    fn hashed(asked: &Asked<'_>, scratch: &mut Scratch) -> Vec<Vec<u64>> {
        let mut all = Vec::new();
        asked.each(4, scratch, |content| all.push(content.to_vec()));
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
                let asked = single(body.as_bytes(), Kind::Tokens, scratch).expect("a query");
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
            let refusal = Scratch::with(|scratch| single(body.as_bytes(), Kind::Tokens, scratch).err());
            let message = refusal.expect("refused").message;
            assert!(message.starts_with(wanted), "{message}");
        }
    }
}
