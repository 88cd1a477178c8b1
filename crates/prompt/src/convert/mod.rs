//! Requests of other kinds as chats: what engines make of `POST /v1/responses` and `POST /v1/messages`.

mod chat;
mod of_messages;
mod of_responses;
mod pieces;
mod tools;

pub(crate) use self::chat::ConvertedChat;
pub(crate) use self::of_messages::of_messages;
pub(crate) use self::of_responses::of_responses;
pub(crate) use self::tools::tools;
