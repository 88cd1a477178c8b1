//! What a query asks: read from its body, checked, its blocks hashed.

use std::borrow::Cow;
use std::cell::Cell;
use std::ops::Range;

use kvatlas_index::hash::content_hashes_into;

use super::json::Reader;
use super::refusal::Refusal;

/// The routing group of those who name none.
pub(crate) const DEFAULT_GROUP: &str = "default";

/// Queries in a batch at most.
pub(crate) const MAX_BATCH: usize = 1024;

/// Bytes of a worker's name at most.
const MAX_NAME: usize = 256;

/// Elements of the memory that a thread keeps between queries at most.
const KEPT: usize = 1 << 18;

type Result<T> = std::result::Result<T, Refusal>;

/// How a query names its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Tokens,
    Hashes,
}

/// Where and how to look, and what to say of it.
#[derive(Debug, Default)]
pub(crate) struct Scope<'a> {
    pub(crate) model: Cow<'a, str>,
    pub(crate) group: Option<Cow<'a, str>>,
    pub(crate) top_k: Option<usize>,
    /// The only workers to consider.
    pub(crate) among: Option<Vec<String>>,
    pub(crate) levels: bool,
    pub(crate) age: bool,
}

impl Scope<'_> {
    pub(crate) fn group(&self) -> &str {
        self.group.as_deref().unwrap_or(DEFAULT_GROUP)
    }
}

/// One prompt.
#[derive(Debug)]
struct Prompt<'a> {
    kind: Kind,
    /// In the scratch memory of its kind.
    range: Range<usize>,
    lora: Option<Cow<'a, str>>,
    salt: Option<Cow<'a, str>>,
}

/// Memory for numbers, used again by the next query of the thread.
#[derive(Default)]
pub(crate) struct Scratch {
    tokens: Vec<u32>,
    hashes: Vec<u64>,
    content: Vec<u64>,
}

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

impl Scratch {
    /// The thread's own, empty; a new one for calls inside calls.
    pub(crate) fn with<T>(work: impl FnOnce(&mut Self) -> T) -> T {
        let mut scratch = SCRATCH.take();
        let done = work(&mut scratch);
        let Self { tokens, hashes, content } = &mut scratch;
        tokens.clear();
        tokens.shrink_to(KEPT);
        for numbers in [hashes, content] {
            numbers.clear();
            numbers.shrink_to(KEPT);
        }
        SCRATCH.set(scratch);
        done
    }
}

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

/// Keys that came, to notice those that come twice.
#[derive(Default)]
struct Seen(u32);

impl Seen {
    fn note(&mut self, bit: u32, key: &str) -> Result<()> {
        if self.0 & 1 << bit != 0 {
            return Err(given_twice(key));
        }
        self.0 |= 1 << bit;
        Ok(())
    }
}

/// A single query: of `/query` with tokens, of `/query_by_hash` with hashes.
pub(crate) fn single<'a>(body: &'a [u8], kind: Kind, scratch: &mut Scratch) -> Result<Asked<'a>> {
    let mut scope = Scope::default();
    let mut prompt = Reading::default();
    let mut model = None;
    let mut seen = Seen::default();
    let mut reader = Reader::new(body);
    reader.object("the body", |reader, key| {
        if !scope_member(reader, key, &mut seen, &mut scope, &mut model)?
            && !prompt.member(reader, key, Some(kind), scratch)?
        {
            match key {
                "levels" => {
                    seen.note(4, key)?;
                    scope.levels = reader.boolean(key)?;
                }
                "age" => {
                    seen.note(5, key)?;
                    scope.age = reader.boolean(key)?;
                }
                _ => reader.skip()?,
            }
        }
        Ok(())
    })?;
    reader.end()?;
    scope.model = model.ok_or_else(|| missing("model_name"))?;
    let otherwise = if kind == Kind::Tokens { TOKEN_IDS } else { CONTENT_HASHES };
    Ok(Asked { scope, prompts: vec![prompt.done(otherwise)?] })
}

/// A batch.
pub(crate) fn batch<'a>(body: &'a [u8], scratch: &mut Scratch) -> Result<Asked<'a>> {
    let mut scope = Scope::default();
    let mut model = None;
    let mut prompts = None;
    let mut seen = Seen::default();
    let mut reader = Reader::new(body);
    reader.object("the body", |reader, key| {
        if scope_member(reader, key, &mut seen, &mut scope, &mut model)? {
            return Ok(());
        }
        if key != "queries" {
            return reader.skip();
        }
        seen.note(6, key)?;
        let mut list = Vec::new();
        reader.array("queries", |reader, at| {
            if at == MAX_BATCH {
                let message = format!("a batch has at most {MAX_BATCH} queries");
                return Err(Refusal::invalid("too_many_queries", message));
            }
            let name = |refusal: Refusal| refusal.at(format_args!("queries[{at}]"));
            let mut prompt = Reading::default();
            reader
                .object(
                    "a query",
                    |reader, key| {
                        if prompt.member(reader, key, None, scratch)? { Ok(()) } else { reader.skip() }
                    },
                )
                .map_err(name)?;
            list.push(prompt.done("token_ids or content_hashes").map_err(name)?);
            Ok(())
        })?;
        prompts = Some(list);
        Ok(())
    })?;
    reader.end()?;
    scope.model = model.ok_or_else(|| missing("model_name"))?;
    Ok(Asked { scope, prompts: prompts.ok_or_else(|| missing("queries"))? })
}

fn missing(key: &str) -> Refusal {
    Refusal::wrong_type(format!("{key} is missing"))
}

fn given_twice(key: &str) -> Refusal {
    Refusal::wrong_type(format!("{key} is given twice"))
}

/// Reads a member that single queries and batches have, if this is one.
fn scope_member<'a>(
    reader: &mut Reader<'a>,
    key: &str,
    seen: &mut Seen,
    scope: &mut Scope<'a>,
    model: &mut Option<Cow<'a, str>>,
) -> Result<bool> {
    match key {
        "model_name" => {
            seen.note(0, key)?;
            *model = Some(reader.string(key)?);
        }
        "routing_group" => {
            seen.note(1, key)?;
            scope.group = reader.string_or_null(key)?;
        }
        "top_k" => {
            seen.note(2, key)?;
            if !reader.null()? {
                let wanted = reader.unsigned(key)?;
                if wanted == 0 {
                    return Err(Refusal::invalid(
                        "invalid_top_k",
                        "top_k must be at least 1; omit it to get all workers",
                    ));
                }
                scope.top_k = Some(usize::try_from(wanted).unwrap_or(usize::MAX));
            }
        }
        "among" => {
            seen.note(3, key)?;
            if !reader.null()? {
                let mut names = Vec::new();
                reader.array(key, |reader, _| {
                    names.push(instance_id(reader, "an item of among")?);
                    Ok(())
                })?;
                scope.among = Some(names);
            }
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// A worker's name, from a number or a string.
fn instance_id(reader: &mut Reader<'_>, what: &str) -> Result<String> {
    if !reader.is_string() {
        return Ok(reader.unsigned(what)?.to_string());
    }
    let name = reader.string(what)?;
    check_name(&name)?;
    Ok(name.into_owned())
}

/// Whether a worker may be called so.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if (1..=MAX_NAME).contains(&name.len()) {
        return Ok(());
    }
    let message = format!(
        "instance_id must be an integer or a string of 1 to {MAX_NAME} bytes, got a string of {} bytes",
        name.len()
    );
    Err(Refusal::invalid("invalid_instance_id", message))
}

const TOKEN_IDS: &str = "token_ids";
const CONTENT_HASHES: &str = "content_hashes";
/// What the dialect calls [`CONTENT_HASHES`].
const BLOCK_HASHES: &str = "block_hashes";

/// A prompt while it is read.
#[derive(Default)]
struct Reading<'a> {
    seen: Seen,
    /// How its blocks are named, and by which member.
    named: Option<(Kind, &'static str)>,
    range: Range<usize>,
    lora: Option<Cow<'a, str>>,
    salt: Option<Cow<'a, str>>,
}

impl<'a> Reading<'a> {
    /// Reads a member of a prompt, if this is one. The other kind's member is not: nobody knows it.
    fn member(
        &mut self,
        reader: &mut Reader<'a>,
        key: &str,
        only: Option<Kind>,
        scratch: &mut Scratch,
    ) -> Result<bool> {
        match key {
            "token_ids" if only != Some(Kind::Hashes) => {
                self.names_blocks(Kind::Tokens, TOKEN_IDS)?;
                let start = scratch.tokens.len();
                reader.tokens(key, &mut scratch.tokens)?;
                self.range = start..scratch.tokens.len();
            }
            "content_hashes" | "block_hashes" if only != Some(Kind::Tokens) => {
                let key = if key == CONTENT_HASHES { CONTENT_HASHES } else { BLOCK_HASHES };
                self.names_blocks(Kind::Hashes, key)?;
                let start = scratch.hashes.len();
                reader.hashes(key, &mut scratch.hashes)?;
                self.range = start..scratch.hashes.len();
            }
            "lora_name" => {
                self.seen.note(0, key)?;
                self.lora = reader.string_or_null(key)?;
            }
            "cache_salt" => {
                self.seen.note(1, key)?;
                self.salt = reader.string_or_null(key)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Notes the member that says which blocks are asked for: there is exactly one.
    fn names_blocks(&mut self, kind: Kind, key: &'static str) -> Result<()> {
        match self.named.replace((kind, key)) {
            None => Ok(()),
            Some((_, same)) if same == key => Err(given_twice(key)),
            Some((_, other)) => {
                let message = format!("{other} and {key} are both given; a query has one of them");
                Err(Refusal::invalid("ambiguous_query", message))
            }
        }
    }

    fn done(self, otherwise: &'static str) -> Result<Prompt<'a>> {
        let Self { named, range, lora, salt, .. } = self;
        let (kind, blocks) = named.ok_or_else(|| missing(otherwise))?;
        if kind == Kind::Hashes && (lora.is_some() || salt.is_some()) {
            let key = if salt.is_some() { "cache_salt" } else { "lora_name" };
            let message = format!("{key} cannot be combined with {blocks}: it is part of the hashes already");
            return Err(Refusal::invalid("salted_hashes", message));
        }
        Ok(Prompt { kind, range, lora, salt })
    }
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
                assert_eq!((&*asked.scope.model, asked.scope.group(), asked.scope.top_k), ("m", "default", Some(3)));
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

    #[test]
    fn memory_is_not_kept_for_ever() {
        Scratch::with(|scratch| scratch.tokens.resize(KEPT * 4, 0));
        Scratch::with(|scratch| assert!(scratch.tokens.is_empty() && scratch.tokens.capacity() <= KEPT));
    }
}
