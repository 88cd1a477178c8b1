//! The fields of a request that an engine has. It looks at no others, so nothing is made of others here either.

use crate::dialect::Dialect;
use crate::endpoint::Endpoint;
use crate::request::{Parts, Request, is_there};

impl Dialect {
    /// The request without the fields that an engine of this dialect does not have.
    pub(crate) fn known_fields<'a>(self, request: &Request<'a>) -> Request<'a> {
        Request { parts: self.known_parts(request.endpoint, &request.parts), ..request.clone() }
    }

    fn known_parts<'a>(self, endpoint: Endpoint, parts: &Parts<'a>) -> Parts<'a> {
        let is_converted = matches!(endpoint, Endpoint::Messages | Endpoint::Responses);
        let mut known = *parts;
        if self.is_vllm() || endpoint != Endpoint::Chat {
            known.input_ids = None;
        }
        if !self.is_vllm() || is_converted {
            known.chat_template = None;
            known.documents = None;
            known.add_generation_prompt = None;
            known.add_special_tokens = None;
            known.truncate_prompt_tokens = None;
            known.truncation_side = None;
        }
        if is_converted {
            known.continue_final_message = None;
        }
        known
    }
}

impl Parts<'_> {
    /// True if there is no field that only some engines have.
    pub(crate) fn are_common(&self) -> bool {
        let own = [
            self.chat_template,
            self.documents,
            self.add_generation_prompt,
            self.add_special_tokens,
            self.truncate_prompt_tokens,
            self.truncation_side,
            self.input_ids,
        ];
        !own.into_iter().any(is_there)
    }
}
