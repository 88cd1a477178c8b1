use super::*;

const NAME: &str = "kvatlas-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn found(body: impl AsRef<[u8]>) -> Option<ReservedPart> {
    find(body.as_ref(), false)
}

fn field(name: &'static str) -> Option<ReservedPart> {
    Some(ReservedPart::Field(name.into()))
}

/// A text with each of these characters written as an escape.
fn escaped(text: &str, which: impl Fn(char) -> bool) -> String {
    text.chars().map(|it| if which(it) { format!("\\u{:04X}", u32::from(it)) } else { it.to_string() }).collect()
}

fn in_units(text: &str, width: usize, is_big: bool, mark: bool) -> Vec<u8> {
    let mark = mark.then_some('\u{feff}');
    mark.into_iter()
        .chain(text.chars())
        .flat_map(|it| {
            let number = u32::from(it);
            let bytes = if is_big { number.to_be_bytes() } else { number.to_le_bytes() };
            if is_big { bytes[4 - width..].to_vec() } else { bytes[..width].to_vec() }
        })
        .collect()
}

#[test]
fn names_are_found_however_they_are_written() {
    let bodies = [
        format!(r#"{{"messages": [{{"content": [{{"uuid": "{NAME}"}}]}}]}}"#),
        format!(r#"{{"a": 1, "a": NaN, "uuid" : "{NAME}"}}"#),
        format!(r#"{{"features": {{"mm_hashes": {{"image": ["{NAME}"]}}}}}}"#),
        format!(r#"[{{"b": "\ud800", "uuid":"{NAME}"}}]"#),
        r#"{"uuid": "kvatlas-0"}"#.to_owned(),
        format!("--x\r\n\r\n{NAME}\r\n--x--"),
        format!("--x\r\nstray \" quote\r\n{{\"body\": {{\"uuid\": \"{NAME}\"}}}}\r\n--x--"),
    ];
    for body in &bodies {
        assert_eq!(found(body), Some(ReservedPart::Name), "{body}");
        assert_eq!(find(body.as_bytes(), true), Some(ReservedPart::Name), "{body}");
    }
    for which in ["k", "-", "v", "kvatlas", "0", "kvatlas-0123456789abcdef", "u"] {
        let body = escaped(&bodies[0], |it| which.contains(it));
        assert_eq!(found(&body), Some(ReservedPart::Name), "{body}");
        let stray = format!("--x\r\nstray \" quote\r\n{body}\r\n--x--");
        assert_eq!(found(&stray), Some(ReservedPart::Name), "{stray}");
        for (width, is_big, mark) in
            [(2, true, true), (2, false, true), (2, true, false), (4, false, true), (4, true, false)]
        {
            assert_eq!(
                found(in_units(&body, width, is_big, mark)),
                Some(ReservedPart::Name),
                "{width} {is_big} {mark}"
            );
        }
    }
    assert_eq!(found(format!("\u{feff}{}", bodies[0])), Some(ReservedPart::Name));
}

#[test]
fn texts_about_names_are_no_names() {
    for body in [
        r#"{"model": "kvatlas-7b", "prompt": "kvatlas-router is a router"}"#.to_owned(),
        r#"{"uuid": "mine", "user": "kvatlas-"}"#.to_owned(),
        format!(r#"{{"prompt": "the log says \"uuid\": \"{NAME}\", \\u0061 and {NAME}"}}"#),
        format!(r#"{{"prompt": "{}", "a": "\u0022\u003c\u00e9\u0060"}}"#, "é日本".repeat(9)),
    ] {
        assert_eq!(found(&body), None, "{body}");
    }
}

#[test]
fn fields_between_the_router_and_engines() {
    for name in [
        "kv_transfer_params",
        "ec_transfer_params",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "bootstrap_pair_key",
        "data_parallel_rank",
        "routed_dp_rank",
        "disagg_prefill_dp_rank",
        "disaggregated_params",
        "decode_tp_size",
    ] {
        for body in [
            format!(r#"{{"prompt": "a", "{name}": {{"a": 1}}}}"#),
            format!("{{\"prompt\": NaN, \"{name}\"\n: [5]}}"),
            format!(r#"{{"{name}": null, "{name}": 0}}"#),
            format!(r#"[{{"prompt": "a"}}, {{"{name}": 0}}]"#),
            format!(r#"{{"vllm_xargs": {{"{name}": "x"}}}}"#),
            format!(r#"{{"sampling_params": [{{"extra_args": {{"{name}": 1}}}}]}}"#),
            format!("--x\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n5\r\n--x--"),
            format!("--x\r\n{{\"messages\": [\"\r\n{{\"body\": {{\"{name}\": 5}}}}\r\n--x--"),
        ] {
            assert_eq!(found(&body), field(name), "{body}");
            assert_eq!(find(body.as_bytes(), true), None, "{body}");
            if body.starts_with(['{', '[']) {
                let hidden = escaped(&body, |it| "_k".contains(it));
                assert_eq!(found(&hidden), field(name), "{hidden}");
                assert_eq!(found(in_units(&body, 2, true, true)), field(name), "{body}");
            }
        }
        for body in [
            format!(r#"{{"prompt": "what is {name}? {{\"{name}\": 5}}", "{name}": null}}"#),
            format!(r#"{{"prompt": "{name}", "a": ["{name}"]}}"#),
            format!(r#"{{"tools": [{{"function": {{"parameters": {{"properties": {{"{name}": {{}}}}}}}}}}]}}"#),
            format!(r#"{{"messages": [{{"content": [{{"type": "tool_use", "input": {{"{name}": 1}}}}]}}]}}"#),
        ] {
            assert_eq!(found(&body), None, "{body}");
        }
        let behind = format!(r#"{{"tools": [{{"a": {{}}}}], "b": {{"{name}": 1}}}}"#);
        assert_eq!(found(behind), field(name));
    }
    assert_eq!(found(r#"{"bootstrap": 1, "params": {}, "rank": 1, "dp": 2}"#), None);
}

#[test]
fn addresses_in_the_name_of_a_request() {
    let id = "a___prefill_addr_10.0.0.1:5___decode_addr_10.0.0.2:6_b";
    assert_eq!(found(format!(r#"{{"request_id": "{id}"}}"#)), field("request_id"));
    assert_eq!(found(format!(r#"{{"request_id": "{}{id}"}}"#, "a".repeat(KEPT_AND_MORE))), field("request_id"));
    assert_eq!(found(format!(r#"{{"prompt": "{id}", "request_id": "r-1"}}"#)), None);
    let mut headers = HeaderMap::new();
    assert_eq!(check_head(&headers), Ok(()));
    headers.insert("x-request-id", id.parse().expect("a value"));
    assert!(check_head(&headers).is_err());
}

const KEPT_AND_MORE: usize = 600;
