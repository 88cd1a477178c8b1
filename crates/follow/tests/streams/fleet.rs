//! Tests of what is registered, and what is left of it.

use kvatlas_follow::config::StreamConfig;
use kvatlas_follow::fleet::Fleet;
use kvatlas_follow::state::Registration;
use tokio::runtime::Handle;

fn registration(worker: &str, model: &str) -> Registration {
    Registration {
        worker: worker.to_owned(),
        names: None,
        model: model.to_owned(),
        routing_group: "default".to_owned(),
        block_size: 16,
        rank: 0,
        endpoint: "ipc:///nowhere/kvatlas".parse().expect("an endpoint"),
        replay_endpoint: None,
        topic: String::new(),
        count_copies: true,
        source: "test".to_owned(),
    }
}

#[tokio::test]
async fn keyspaces_without_workers_are_not_kept_without_end() {
    let fleet = Fleet::new(StreamConfig::default(), &[], Handle::current());
    fleet.register(registration("stays", "kept")).await.expect("new");
    let kept = fleet.keyspace("kept", "default").expect("it is there");
    for model in 0..1500 {
        let model = format!("model-{model}");
        fleet.register(registration("goes", &model)).await.expect("new");
        fleet.unregister("goes", None, None).await.expect("it is there");
        assert!(fleet.keyspace(&model, "default").is_some(), "the last worker leaving does not end a keyspace");
    }
    assert!(fleet.keyspaces().len() <= 1024);
    assert!(std::ptr::eq(&*kept, &*fleet.keyspace("kept", "default").expect("it has a worker")));
    fleet.stop().await;
}
