//! `/register` and `/unregister`: bodies parsed and passed to the fleet, which checks the values.

use hyper::{Response, StatusCode};
use kvatlas_follow::fleet::RegistrationOutcome;
use kvatlas_follow::register::{InstanceId, MAX_TEXT, check_name, registration};
use serde::Deserialize;

use crate::answer::{Answer, json};
use crate::app::App;
use crate::refusal::Refusal;

#[derive(Debug, Deserialize)]
struct UnregisterRequest {
    instance_id: InstanceId,
    model_name: Option<String>,
    routing_group: Option<String>,
    dp_rank: Option<u32>,
}

pub(crate) async fn register(app: &App, body: &[u8]) -> Result<Response<Answer>, Refusal> {
    let registration = registration(body)?;
    app.follower.allow().check_registration(&registration, None)?;
    #[cfg(test)]
    if app.fail.swap(false, std::sync::atomic::Ordering::Relaxed) {
        return Err(kvatlas_follow::Error::Internal.into());
    }
    let status = match app.fleet.register(registration).await? {
        RegistrationOutcome::New => StatusCode::CREATED,
        RegistrationOutcome::Already => StatusCode::OK,
    };
    Ok(done(status))
}

pub(crate) async fn unregister(app: &App, body: &[u8]) -> Result<Response<Answer>, Refusal> {
    let UnregisterRequest { instance_id, model_name, routing_group, dp_rank } = serde_json::from_slice(body)?;
    check_name(&instance_id.0)?;
    for (what, text) in [("model_name", &model_name), ("routing_group", &routing_group)] {
        if text.as_ref().is_some_and(|text| text.len() > MAX_TEXT) {
            return Err(Refusal::wrong_type(format!("{what} must be a string of at most {MAX_TEXT} bytes")));
        }
    }
    if model_name.is_none() && routing_group.is_some() {
        let message = "routing_group can only be given together with model_name";
        return Err(Refusal::invalid("missing_model_name", message));
    }
    let keyspace = model_name.as_deref().map(|model| (model, routing_group.as_deref()));
    app.fleet.unregister(&instance_id.0, keyspace, dp_rank).await?;
    Ok(done(StatusCode::OK))
}

fn done(status: StatusCode) -> Response<Answer> {
    json(status, &b"{\"status\":\"ok\"}"[..])
}
