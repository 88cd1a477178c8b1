//! Random bodies as clients may write them, some of them malformed.

use kvatlas_prompt::Endpoint;

/// Random numbers, and random parts of bodies.
pub(crate) struct Random(pub(crate) kvatlas_testing::Random);

impl Random {
    pub(crate) fn below(&mut self, most: usize) -> usize {
        self.0.index(most)
    }

    fn one<'t>(&mut self, of: &[&'t str]) -> &'t str {
        self.0.pick::<&str>(of)
    }

    fn text(&mut self) -> String {
        const WORDS: [&str; 14] = [
            "some",
            "words",
            "say",
            " ",
            "a\n",
            "\"quoted\"",
            "naïve",
            "日本",
            "<|im_start|>",
            "<|im_end|>",
            "<s>",
            "\\",
            "\"messages\": [",
            "}]",
        ];
        let rare = self.below(3) == 0;
        let mut text = String::new();
        for _ in 0..self.below(900) {
            text.push_str(self.one(&WORDS[..if rare { WORDS.len() } else { 5 }]));
            text.push(' ');
        }
        text
    }

    /// A message of `POST /v1/messages`.
    fn message_of_messages(&mut self, at: usize) -> String {
        let text = serde_json::to_string(&self.text()).unwrap();
        let role = ["user", "assistant"][at % 2];
        match self.below(30) {
            0 => format!(r#"{{"content":{text},"role":"{role}"}}"#),
            1..6 => format!(
                r#"{{"role": "user", "content": [{{"type": "tool_result", "tool_use_id": "c1", "content": {text}}}, {{"type": "text", "text": "{at}"}}]}}"#
            ),
            6..11 => format!(
                r#"{{"role": "assistant", "content": [{{"type": "thinking", "thinking": "so {at}", "signature": "s"}}, {{"type": "text", "text": {text}}}, {{"type": "tool_use", "id": "c1", "name": "f", "input": {{"a": {at}}}}}]}}"#
            ),
            11..14 => format!(
                r#"{{"role": "{role}", "content": [{{"type": "text", "text": {text}, "cache_control": {{"type": "ephemeral"}}}}]}}"#
            ),
            14 => format!(r#"{{"role": "system", "content": {text}}}"#),
            15 => r#"{"role": "user", "content": []}"#.to_owned(),
            16 => format!(
                r#"{{"role": "user", "content": [{{"type": "tool_addition", "tool": {{"definition": {{"name": "g{at}", "input_schema": {{}}}}}}}}]}}"#
            ),
            17 if self.below(4) == 0 => {
                r#"{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}"#.to_owned()
            }
            18 if self.below(4) == 0 => {
                self.one(&["{}", "5", r#"{"role": 5}"#, r#"{"role": "user" "#, "\"x\"", "[]"]).to_owned()
            }
            _ => format!(r#"{{"role": "{role}", "content": {text}}}"#),
        }
    }

    /// An item of `POST /v1/responses`.
    fn item(&mut self, at: usize) -> String {
        let text = serde_json::to_string(&self.text()).unwrap();
        let role = ["user", "assistant"][at % 2];
        match self.below(30) {
            0..4 => format!(r#"{{"type": "function_call_output", "call_id": "c1", "output": {text}}}"#),
            4..8 => {
                format!(r#"{{"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{{\"a\": {at}}}"}}"#)
            }
            8..11 => {
                format!(r#"{{"type": "reasoning", "summary": [{{"type": "summary_text", "text": {text}}}]}}"#)
            }
            11..14 => format!(
                r#"{{"type": "message", "role": "assistant", "phase": "{}", "content": [{{"type": "output_text", "text": {text}}}]}}"#,
                ["commentary", "final_answer"][at % 2]
            ),
            14 => format!(r#"{{"role": "{}", "content": {text}}}"#, self.one(&["system", "developer"])),
            15 => format!(r#"{{"role": "assistant", "content": {text}, "status": "in_progress"}}"#),
            16 => format!(
                r#"{{"type": "custom_tool_call", "call_id": "c1", "name": "f", "input": {text}}}, {{"type": "custom_tool_call_output", "call_id": "c1", "output": "o"}}"#
            ),
            17 => r#"{"role": "assistant", "content": []}"#.to_owned(),
            18 if self.below(4) == 0 => {
                self.one(&["{}", "5", r#"{"role": 5}"#, r#"{"role": "user" "#, "\"x\"", "[]"]).to_owned()
            }
            _ => format!(
                r#"{{"type": "message", "role": "{role}", "content": [{{"type": "input_text", "text": {text}}}]}}"#
            ),
        }
    }

    /// An item of the list of an endpoint.
    pub(crate) fn said(&mut self, endpoint: Endpoint, at: usize) -> String {
        match endpoint {
            Endpoint::Messages => self.message_of_messages(at),
            Endpoint::Responses => self.item(at),
            _ => self.message(at),
        }
    }

    /// A message of a chat request.
    fn message(&mut self, at: usize) -> String {
        let text = serde_json::to_string(&self.text()).unwrap();
        let role = if at == 0 { self.one(&["system", "user", "developer"]) } else { ["assistant", "user"][at % 2] };
        match self.below(24) {
            0 => format!(r#"{{"content":{text},"role":"{role}"}}"#),
            1 => format!("{{ \"role\" : \"{role}\",\n \"content\" : {text} }}"),
            2 => format!(
                r#"{{"role": "{role}", "content": [{{"type": "text", "text": {text}}}, {{"type": "text", "text": "b"}}]}}"#
            ),
            3 => format!(
                r#"{{"role": "assistant", "content": null, "tool_calls": [{{"id": "c1", "type": "function", "function": {{"name": "f", "arguments": "{{\"a\": {at}}}"}}}}]}}"#
            ),
            4 => format!(r#"{{"role": "tool", "tool_call_id": "c1", "content": {text}}}"#),
            5 => format!(r#"{{"role": "assistant", "content": {text}, "reasoning_content": {text}}}"#),
            6 => format!(r#"{{"role": "{role}", "content": {text}, "name": "someone", "other": [1, {{}}]}}"#),
            7 if self.below(4) == 0 => {
                format!(
                    r#"{{"role": "user", "content": [{{"type": "image_url", "image_url": {{"url": "x"}}}}, {{"type": "text", "text": {text}}}]}}"#
                )
            }
            8 if self.below(4) == 0 => {
                self.one(&["{}", "5", r#"{"role": 5}"#, r#"{"role": "user" "#, "\"x\"", "[]"]).to_owned()
            }
            _ => format!(r#"{{"role": "{role}", "content": {text}}}"#),
        }
    }

    /// A body with these messages.
    pub(crate) fn body(&mut self, endpoint: Endpoint, messages: &[String]) -> Vec<u8> {
        let between = if self.below(8) == 0 { self.one(&[",", " ,\n"]) } else { ", " };
        let list = format!("[{}]", messages.join(between));
        let more = self.one(&[
            "",
            "",
            "",
            "",
            "",
            r#", "add_generation_prompt": false"#,
            r#", "continue_final_message": true, "add_generation_prompt": false"#,
            r#", "add_special_tokens": true"#,
            r#", "truncate_prompt_tokens": 100"#,
            r#", "tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": 1}}}]"#,
            r#", "chat_template_kwargs": {"enable_thinking": false}"#,
            r#", "messages": [{"role": "user", "content": "twice"}]"#,
            r#", "messages": null"#,
            r#", "stream": true, "user": "u", "max_tokens": 7"#,
            ", \"x\": \"\\u00e9\"",
            r#", "system": "be brief", "instructions": "be brief""#,
            r#", "system": "be brief", "instructions": "be brief""#,
            r#", "system": [{"type": "text", "text": "x-anthropic-billing-header: 5"}, {"type": "text", "text": "be brief"}]"#,
        ]);
        let mut body = match self.below(12) {
            0 => format!(r#"{{"messages": {list}, "model": "m"{more}}}"#),
            1 => format!(r#"{{"user": "\"messages\": [", "messages": {list}{more}}}"#),
            2 => format!(r#"{{"metadata": {{"messages": []}}, "messages": {list}{more}}}"#),
            3 => format!(
                r#"{{"metadata": {{"messages": {list}}}, "messages": [{{"role": "user", "content": "q"}}]{more}}}"#
            ),
            4 => format!("{{\"model\": \"m\", \"messages\" :\n {list} {more} }}"),
            _ => format!(r#"{{"model": "m", "messages": {list}{more}}}"#),
        };
        if endpoint == Endpoint::Responses {
            body = body.replace("\"messages\":", "\"input\":").replace("\"messages\" :", "\"input\" :");
        }
        match self.below(60) {
            0 => body.truncate(body.len() - 1),
            1 => body = body.replacen("}]", "},]", 1),
            2 => body = body.replacen("}, {", "} {", 1),
            3 => body.push('x'),
            _ => {}
        }
        let mut body = body.into_bytes();
        if self.below(60) == 0 {
            let at = self.below(body.len());
            body[at] = 0xff;
        }
        body
    }
}
