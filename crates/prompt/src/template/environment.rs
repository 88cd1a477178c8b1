//! Environment in which chat templates are rendered: filters, tests, functions and methods of Jinja in Python and of
//! transformers.

use std::fmt;
use std::sync::Arc;

use jiff::Zoned;
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use super::syntax::{self, Pieces, syntax};
use crate::allowance;
use crate::python::{self, Json, strftime};

/// Limits on the work of rendering a template, in instructions and pieces of 64 bytes of output. The larger limit is
/// for long chats. A template may loop over all messages once per message of a short chat, but not of a long one.
pub(super) const FUEL: [u64; 2] = [1_000_000, 8_000_000];

/// Number of instructions assumed for rendering any chat, to choose between the work limits.
const AT_LEAST: u64 = 200_000;
/// Number of instructions assumed for rendering each message of a chat.
const A_MESSAGE: u64 = 300;
/// Number of instructions assumed for rendering each 64 bytes of text.
const A_STEP: u64 = 8;

/// Index in [`FUEL`] of the work limit for a chat with this number of messages and bytes of text.
pub(super) fn fuel_for(messages: usize, bytes: usize) -> usize {
    let needs = AT_LEAST + A_MESSAGE * messages as u64 + A_STEP * (bytes as u64 / 64);
    usize::from(needs > FUEL[0])
}

/// Source of the current time in templates.
#[derive(Clone)]
pub(crate) struct Clock(Arc<dyn Fn() -> Zoned + Send + Sync>);

impl Default for Clock {
    fn default() -> Self {
        Self(Arc::new(Zoned::now))
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

#[cfg(test)]
impl Clock {
    /// Creates a clock with a fixed time.
    pub(crate) fn at(time: Zoned) -> Self {
        Self(Arc::new(move || time.clone()))
    }
}

/// Creates an environment for rendering chat templates, with functions and filters but without a template.
pub(super) fn environment(clock: Clock) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(FUEL[0]));
    environment.set_syntax(syntax());
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_formatter(|out, _, value| {
        match (value.as_str(), value.downcast_object_ref::<Pieces>()) {
            (Some(text), _) => out.write_str(text),
            (None, Some(pieces)) => pieces.texts().try_for_each(|text| out.write_str(text)),
            (None, None) => out.write_str(&python::text(value)),
        }
        .map_err(|_| Error::new(ErrorKind::WriteFailure, "cannot write"))
    });
    environment.set_unknown_method_callback(method);
    syntax::add_to(&mut environment);
    environment.add_filter("tojson", to_json);
    environment.add_filter("string", |value: &Value| python::text(value));
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
    });
    environment.add_test("iterable", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Iterable)
    });
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", move |format: String| -> Result<String, Error> {
        strftime(&format, &clock.0()).map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
    });
    environment
}

/// Filter `tojson`, like `json.dumps`: transformers replaces Jinja's own filter, which escapes HTML.
fn to_json(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let ascii = named(&args, &kwargs, 0, "ensure_ascii")?.is_some_and(|value| value.is_true());
    let indent = named(&args, &kwargs, 1, "indent")?.filter(|value| !value.is_none());
    let separators = named(&args, &kwargs, 2, "separators")?.filter(|value| !value.is_none());
    let sort = named(&args, &kwargs, 3, "sort_keys")?.is_some_and(|value| value.is_true());
    kwargs.assert_all_used()?;
    let indent = indent.map(|indent| indentation(&indent)).transpose()?;
    let mut json = Json { indent, ascii, sort, ..Json::default() };
    if json.indent.is_some() {
        json.comma = ",".into();
    }
    if let Some(separators) = separators {
        let mut given = separators.try_iter()?;
        if let (Some(comma), Some(colon)) = (given.next(), given.next()) {
            (json.comma, json.colon) = (python::text(&comma), python::text(&colon));
        }
    }
    json.dump(value).ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "this is not JSON serializable"))
}

/// Returns the indentation of one level of JSON, given in a template as a number of spaces or as a string.
fn indentation(indent: &Value) -> Result<String, Error> {
    if let Some(text) = indent.as_str().filter(|text| text.len() <= WIDEST) {
        return Ok(text.to_owned());
    }
    // A bool is an int in Python, and a negative number means none.
    let spaces =
        if indent.kind() == ValueKind::Bool { i64::from(indent.is_true()) } else { i64::try_from(indent.clone())? };
    let spaces = usize::try_from(spaces).unwrap_or(0);
    if spaces > WIDEST {
        return Err(Error::new(ErrorKind::InvalidOperation, "the indentation is too wide"));
    }
    Ok(" ".repeat(spaces))
}

/// Returns an argument of a call in a template, by name or by position; `None` if the argument is missing.
fn named(args: &Rest<Value>, kwargs: &Kwargs, place: usize, name: &str) -> Result<Option<Value>, Error> {
    Ok(kwargs.get::<Option<Value>>(name)?.or_else(|| args.get(place).cloned()))
}

/// Maximum width of an indentation that a template asks for in JSON, in bytes.
const WIDEST: usize = 64;
/// Maximum number of digits in the width of a field in a format string of a template.
const LONGEST_WIDTH: usize = 4;

/// Memory counted for an item of a list made by a template, in bytes, including a short text.
const ITEM: usize = 48;

/// Checks, before a result is made, that a method called by a template may return `bytes` bytes.
fn check(state: &State<'_, '_>, bytes: usize) -> Result<(), Error> {
    let left = state.fuel_levels().map_or(u64::MAX, |(_, left)| left);
    if bytes as u64 / 64 > left || !allowance::has_room_for(bytes) {
        // The remaining work.
        state.consume_fuel(left)?;
    }
    Ok(())
}

/// Checks the arguments of string methods whose results can be many times as long as the string.
fn check_method(state: &State<'_, '_>, text: &str, name: &str, args: &[Value]) -> Result<(), Error> {
    let first = args.first().and_then(Value::as_str);
    match (name, first, args.get(1).and_then(Value::as_str)) {
        ("replace", Some(old), Some(new)) if new.len() > old.len() => {
            check(state, text.len() + text.matches(old).count() * (new.len() - old.len()))
        }
        ("split" | "rsplit", Some(mark), _) if !mark.is_empty() => {
            check(state, text.len() + ITEM * text.matches(mark).count())
        }
        ("split", None, _) => check(state, text.len() + ITEM * text.split_whitespace().count()),
        ("splitlines", ..) => check(state, text.len() + ITEM * text.lines().count()),
        ("join", ..) => {
            let count = args.first().and_then(Value::len).unwrap_or(0);
            check(state, count * text.len())
        }
        ("format", ..) => {
            let is_wide = text.split(|char: char| !char.is_ascii_digit()).any(|digits| digits.len() > LONGEST_WIDTH);
            let is_nested = text.contains(":{");
            if is_wide || is_nested {
                return Err(Error::new(ErrorKind::InvalidOperation, "the format has too wide a field"));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Calls a method of a Python string, list or dictionary in a template.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        check_method(state, text, name, args)?;
        let one = || args.first().and_then(Value::as_str);
        match (name, one()) {
            ("removeprefix", Some(prefix)) => return Ok(text.strip_prefix(prefix).unwrap_or(text).into()),
            ("removesuffix", Some(suffix)) => return Ok(text.strip_suffix(suffix).unwrap_or(text).into()),
            ("partition", Some(mark)) => return Ok(parts(text.split_once(mark), mark, (text, "", ""))),
            ("rpartition", Some(mark)) => return Ok(parts(text.rsplit_once(mark), mark, ("", "", text))),
            ("rsplit", Some(mark)) if !mark.is_empty() => {
                let limit = args.get(1).and_then(|limit| usize::try_from(limit.clone()).ok());
                let mut found: Vec<&str> = match limit {
                    Some(limit) => text.rsplitn(limit + 1, mark).collect(),
                    None => text.rsplit(mark).collect(),
                };
                found.reverse();
                return Ok(found.into_iter().map(Value::from).collect());
            }
            ("swapcase" | "format_map" | "encode", _) => return Err(Error::from(ErrorKind::UnknownMethod)),
            _ => {}
        }
    }
    pycompat::unknown_method_callback(state, value, name, args)
}

fn parts(found: Option<(&str, &str)>, mark: &str, none: (&str, &str, &str)) -> Value {
    let (left, mark, right) = match found {
        Some((left, right)) => (left, mark, right),
        None => none,
    };
    [left, mark, right].into_iter().map(Value::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(source: &str) -> String {
        let now: jiff::civil::DateTime = "2026-03-05T07:08:09".parse().unwrap();
        let clock = Clock::at(now.to_zoned(jiff::tz::TimeZone::UTC).unwrap());
        environment(clock).render_str(source, ()).unwrap_or_else(|error| error.to_string())
    }

    #[test]
    fn filters_and_functions_are_those_of_python() {
        for (source, expected) in [
            (r"{{ {'a': [1, {}]} | tojson(indent='\t') }}", "{\n\t\"a\": [\n\t\t1,\n\t\t{}\n\t]\n}"),
            ("{{ [1, [2]] | tojson(indent='--') }}", "[\n--1,\n--[\n----2\n--]\n]"),
            ("{{ [1] | tojson(indent='') }}", "[\n1\n]"),
            ("{{ [1] | tojson(indent=0) }}", "[\n1\n]"),
            ("{{ [1] | tojson(indent=-1) }}", "[\n1\n]"),
            ("{{ [1] | tojson(indent=true) }}", "[\n 1\n]"),
            ("{{ [1, 2] | tojson(indent=none) }}", "[1, 2]"),
            ("{{ 'é\u{7f}~' | tojson(ensure_ascii=true) }}", "\"\\u00e9\\u007f~\""),
            ("{{ 'é\u{7f}~' | tojson }}", "\"é\u{7f}~\""),
            ("{{ strftime_now('%c|%x|%X|%Z|%Q') }}", "Thu Mar  5 07:08:09 2026|03/05/26|07:08:09||%Q"),
        ] {
            assert_eq!(rendered(source), expected, "{source}");
        }
    }
}
