//! What is said when a model can't be had: the cause, and what to do next.

use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use super::site::{Reply, Repository, Site, TOKEN, World};

/// A hub that has one answer to everything.
fn always(reply: Reply) -> World {
    World::with(Repository::tiny(), move |_, _| reply.clone(), |_, reply| reply)
}

fn says(error: &str, words: &[&str]) {
    for word in words {
        assert!(error.contains(word), "'{word}' is missing: {error}");
    }
}

#[test]
fn private_gated_or_misspelt() {
    // The hub does not tell a stranger whether a repository is private or not there at all.
    let world = always(Reply::status(401).with("X-Error-Code", "RepoNotFound"));
    let page = format!("{}/owner/tiny", world.hub.url);
    says(&world.refusal(&[]), &["owner/tiny", "401", "private, or does not exist", "HF_TOKEN", &page]);
    says(&world.refusal(&[("HF_TOKEN", TOKEN)]), &["token that is set", "not valid or may not read it"]);
    let world = always(Reply::status(403).with("X-Error-Code", "GatedRepo"));
    says(&world.refusal(&[]), &["gated", "accept its conditions at http://127.0.0.1", "HF_TOKEN"]);
    says(&world.refusal(&[("HF_TOKEN", TOKEN)]), &["gated", "has no access yet", "accept its conditions"]);
    let world = always(Reply::status(404).with("X-Error-Code", "RevisionNotFound"));
    says(&world.refusal(&[]), &["no such repository or revision (404)", "check the spelling", "main"]);
    assert_eq!(world.hub.asked().len(), 1, "asking again has no point");
}

#[test]
fn a_rate_limit_is_honoured_and_bounded() {
    let asked = AtomicUsize::new(0);
    let once = move |_: &_, reply| match asked.fetch_add(1, SeqCst) {
        1 => Reply::status(429).with("Retry-After", "1"),
        _ => reply,
    };
    let world = World::with(Repository::tiny(), once, |_, reply| reply);
    let started = Instant::now();
    world.fetch(&[]).expect("a model, after a wait");
    assert!(started.elapsed() >= Duration::from_secs(1));
    let world = always(Reply::status(429).with("Retry-After", "1"));
    says(&world.refusal(&[]), &["too many requests (429)", "try again in 1 s", "HF_TOKEN"]);
    assert_eq!(world.hub.asked().len(), 4, "three waits are granted");
    // Nobody wants to look at a program that waits for an hour.
    let world = always(Reply::status(429).with("RateLimit", "\"api\";r=0;t=3600"));
    says(&world.refusal(&[]), &["try again in 3600 s"]);
    assert_eq!(world.hub.asked().len(), 1);
}

#[test]
fn without_a_network() {
    // Bound and dropped: a port on which nobody listens.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
    let world = World::of(Repository::tiny());
    let endpoint = format!("http://127.0.0.1:{port}");
    let cache = world.cache().display().to_string();
    let by_hand = ["config.json", "model.safetensors", "tokenizer.json", "give that folder as --model", cache.as_str()];
    let refused = world.refusal(&[("HF_ENDPOINT", &endpoint)]);
    says(&refused, &["connection refused", "HF_ENDPOINT", "HTTPS_PROXY", &endpoint]);
    says(&refused, &by_hand);
    // Too long to be a name in the DNS, so that no other machine is asked for it.
    let nowhere = format!("http://{}.invalid", "a".repeat(70));
    let unknown = world.refusal(&[("HF_ENDPOINT", &nowhere)]);
    says(&unknown, &["no connection", &nowhere]);
    says(&unknown, &by_hand);
    let offline = world.refusal(&[("HF_HUB_OFFLINE", "1")]);
    says(&offline, &["HF_HUB_OFFLINE is set", "not in the cache"]);
    says(&offline, &by_hand);
    assert!(world.hub.asked().is_empty(), "offline asks nobody");
}

#[test]
fn what_the_cache_has_will_do_where_the_hub_is_away() {
    let world = World::of(Repository::tiny());
    let found = world.fetch(&[]).expect("a model");
    // As another client leaves it that has not asked for every file.
    std::fs::remove_dir_all(world.cache().join(".no_exist")).expect("removed");
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
    let away = format!("http://127.0.0.1:{port}");
    assert_eq!(world.fetch(&[("HF_ENDPOINT", &away)]).expect("from the cache"), found);
    assert_eq!(world.fetch(&[("HF_HUB_OFFLINE", "1")]).expect("from the cache"), found);
}

#[test]
fn a_repository_without_safetensors_is_named_with_the_way_out() {
    let pickle = Repository::tiny().without("model.safetensors");
    let world = World::of(pickle.clone().with("pytorch_model.bin", b"pickle"));
    says(
        &world.refusal(&[]),
        &[
            "only as pytorch_model.bin",
            "pickle",
            "from_pretrained(\"owner/tiny\"",
            "safe_serialization=True",
            "refs/pr/N",
        ],
    );
    assert_eq!(world.hub.asked().len(), 1, "nothing is downloaded for nothing");
    says(&World::of(pickle).refusal(&[]), &["neither model.safetensors nor model.safetensors.index.json"]);
    says(&World::of(Repository::tiny().without("config.json")).refusal(&[]), &["has no config.json"]);
}

#[test]
fn a_model_of_another_kind_is_refused_before_its_weights_come() {
    let world = World::of(Repository::tiny().with("config.json", br#"{"model_type": "llama", "hidden_size": 8}"#));
    says(&world.refusal(&[]), &["owner/tiny is no model that autofit knows", "llama"]);
    assert!(world.storage.asked().is_empty());
    let world = World::of(Repository::tiny().with("config.json", b"{"));
    says(&world.refusal(&[]), &["owner/tiny is no model that autofit knows", "config.json"]);
}

#[test]
fn a_server_that_fails_is_asked_again_but_not_for_ever() {
    let asked = AtomicUsize::new(0);
    let once = move |_: &_, reply| if asked.fetch_add(1, SeqCst) == 0 { Reply::status(503) } else { reply };
    World::with(Repository::tiny(), once, |_, reply| reply).fetch(&[]).expect("a model, the second time");
    let world = always(Reply::status(500));
    says(&world.refusal(&[]), &["the server failed (status 500)", "try again later"]);
    assert_eq!(world.hub.asked().len(), 5);
}

#[test]
fn answers_that_no_hub_gives() {
    let page = Reply { status: 200, body: b"<html>Please log in</html>".to_vec(), ..Reply::default() };
    says(&always(page).refusal(&[]), &["no listing of a repository", "HF_ENDPOINT", "login page"]);
    let body = br#"{"sha": "../../../evil", "siblings": [{"rfilename": "config.json"}]}"#.to_vec();
    says(
        &always(Reply { status: 200, body, ..Reply::default() }).refusal(&[]),
        &["commit is not 40 hexadecimal digits"],
    );
    // A hub whose ETag would be a path.
    let world = World::with(
        Repository::tiny(),
        |request, reply| match request.method.as_str() {
            "HEAD" => Reply::status(200).with("ETag", "\"../../evil\"").with("Content-Length", "10"),
            _ => reply,
        },
        |_, reply| reply,
    );
    says(&world.refusal(&[]), &["config.json has no ETag"]);
    let nothing = Site::start(|_| Reply { status: 200, body: vec![0; 10], cut: Some(5), ..Reply::default() });
    let world = World { hub: nothing, storage: Site::start(|_| Reply::status(500)), ..World::of(Repository::tiny()) };
    says(&world.refusal(&[]), &["connection broke", "goes on where it stopped"]);
}
