//! What arrives in the cache, whatever happens on the way.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use autofit::model::hub::{self, Name, Need};
use autofit::model::source::ModelFiles;
use autofit::probe::protocol::ModelSource;

use super::site::{COMMIT, Lines, Reply, Repository, Request, Site, TOKEN, World, fixture};

const WEIGHTS: &str = "model.safetensors";

/// Changes the first answer that brings weights.
fn once(change: impl Fn(Reply) -> Reply + Send + Sync) -> impl Fn(&Request, Reply) -> Reply + Send + Sync {
    let asked = AtomicUsize::new(0);
    move |_, reply| if asked.fetch_add(1, SeqCst) == 0 { change(reply) } else { reply }
}

#[test]
fn a_model_is_downloaded_once_into_the_layout_of_all_clients() {
    let (world, repository) = (World::of(Repository::tiny()), Repository::tiny());
    let found = world.fetch(&[]).expect("a model");
    assert_eq!(found.folder, world.cache().join("snapshots").join(COMMIT));
    assert_eq!(found.to_string(), format!("owner/tiny@{COMMIT}"));
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", WEIGHTS] {
        let file = found.folder.join(name);
        assert!(fs::read(&file).expect(name) == fixture(name), "{name}");
        let blob = format!("../../blobs/{}", repository.etag(name));
        assert_eq!(fs::read_link(&file).expect("a link").to_str(), Some(blob.as_str()));
    }
    assert_eq!(fs::read_dir(&found.folder).expect("a folder").count(), 4, "nothing that nobody needs");
    assert_eq!(fs::read_to_string(world.cache().join("refs/main")).expect("a branch"), COMMIT);
    assert!(world.cache().join(".no_exist").join(COMMIT).join("vocab.txt").is_file());
    let asked = world.hub.asked().len() + world.storage.asked().len();
    assert_eq!(world.fetch(&[]).expect("from the cache"), found);
    assert_eq!(world.fetch_named(&format!("owner/tiny@{COMMIT}"), &[]).expect("by its commit"), found);
    assert_eq!(world.fetch(&[("HF_HUB_OFFLINE", "1")]).expect("offline"), found);
    assert_eq!(world.hub.asked().len() + world.storage.asked().len(), asked, "what is there is not asked for");
    let files = ModelFiles::open(&ModelSource::Folder(found.folder)).expect("a model");
    files.load(&files.config, 1, &burn::tensor::Device::flex().autodiff()).expect("weights");
}

#[test]
fn a_shape_needs_no_weights_and_weights_come_later() {
    let world = World::of(Repository::tiny());
    let name = Name::parse("owner/tiny", None).expect("a revision").expect("a name");
    let found = hub::fetch(&name, Need::Config, &world.settings(&[]), &mut Lines::default()).expect("a shape");
    assert!(found.folder.join("config.json").is_file() && !found.folder.join(WEIGHTS).exists());
    assert!(world.storage.asked().is_empty());
    let whole = world.fetch(&[]).expect("a model");
    assert!(whole.folder == found.folder && whole.folder.join(WEIGHTS).is_file());
    let configs = world.hub.asked().iter().filter(|request| request.is_for("resolve-cache/config.json")).count();
    assert_eq!(configs, 1, "what was there was not downloaded again");
}

#[test]
fn a_download_that_breaks_off_goes_on_where_it_was() {
    let cut = |reply: Reply| Reply { cut: Some(50_000), ..reply };
    let world = World::with(Repository::tiny(), |_, reply| reply, once(cut));
    let found = world.fetch(&[]).expect("a model");
    assert!(fs::read(found.folder.join(WEIGHTS)).expect("weights") == fixture(WEIGHTS));
    let starts: Vec<_> = world.storage.asked().iter().map(Request::start).collect();
    assert_eq!(starts, [None, Some(50_000)]);
    assert!(!world.blob(&format!("{}.incomplete", Repository::tiny().etag(WEIGHTS))).exists());
}

#[test]
fn what_an_earlier_process_left_is_continued_or_replaced() {
    let etag = Repository::tiny().etag(WEIGHTS);
    let content = fixture(WEIGHTS);
    let other = vec![7; 1_000];
    let long = vec![7; content.len() + 1];
    for (left, starts) in [
        (&content[..1_000], vec![Some(1_000)]),
        // Whole, but not renamed yet.
        (&content[..], vec![]),
        // Not the beginning of this file: its hash says so at the end.
        (&other, vec![Some(1_000), None]),
        (&long, vec![None]),
    ] {
        let world = World::of(Repository::tiny());
        fs::create_dir_all(world.blob("")).expect("a folder");
        fs::write(world.blob(&format!("{etag}.incomplete")), left).expect("written");
        let found = world.fetch(&[]).expect("a model");
        assert!(fs::read(found.folder.join(WEIGHTS)).expect("weights") == content);
        assert_eq!(world.storage.asked().iter().map(Request::start).collect::<Vec<_>>(), starts);
    }
}

#[test]
fn a_server_without_ranges_sends_all_of_it_again() {
    let content = fixture(WEIGHTS);
    let whole = move |_: &Request, reply: Reply| Reply { status: 200, body: content.clone(), headers: vec![], ..reply };
    let world = World::with(Repository::tiny(), |_, reply| reply, whole);
    fs::create_dir_all(world.blob("")).expect("a folder");
    fs::write(world.blob(&format!("{}.incomplete", Repository::tiny().etag(WEIGHTS))), &fixture(WEIGHTS)[..9])
        .expect("");
    let found = world.fetch(&[]).expect("a model");
    assert!(fs::read(found.folder.join(WEIGHTS)).expect("weights") == fixture(WEIGHTS));
    assert_eq!(world.storage.asked().iter().map(Request::start).collect::<Vec<_>>(), [Some(9)]);
}

fn damaged(mut reply: Reply) -> Reply {
    reply.body[100_000] ^= 1;
    reply
}

#[test]
fn damaged_content_never_counts() {
    let world = World::with(Repository::tiny(), |_, reply| reply, once(damaged));
    let found = world.fetch(&[]).expect("a model, the second time");
    assert!(fs::read(found.folder.join(WEIGHTS)).expect("weights") == fixture(WEIGHTS));
    let world = World::with(Repository::tiny(), |_, reply| reply, |_, reply| damaged(reply));
    let error = world.refusal(&[]);
    assert!(error.contains("damaged") && error.contains(&Repository::tiny().etag(WEIGHTS)), "{error}");
    assert!(!world.blob(&Repository::tiny().etag(WEIGHTS)).exists());
    assert!(!world.cache().join("snapshots").join(COMMIT).join(WEIGHTS).exists());
}

#[test]
fn a_blob_that_lost_its_end_is_replaced() {
    let world = World::of(Repository::tiny());
    let found = world.fetch(&[]).expect("a model");
    let blob = world.blob(&Repository::tiny().etag(WEIGHTS));
    fs::OpenOptions::new().write(true).open(&blob).and_then(|file| file.set_len(70_000)).expect("shorter");
    assert_eq!(world.fetch(&[]).expect("the model again"), found);
    assert!(fs::read(found.folder.join(WEIGHTS)).expect("weights") == fixture(WEIGHTS));
}

#[test]
fn shards_are_downloaded_as_the_index_names_them() {
    let index = |shard: &str| serde_json::json!({"metadata": {}, "weight_map": {"a": shard, "b": shard}}).to_string();
    let shard = "model-00001-of-00001.safetensors";
    let sharded = |named: &str| {
        let index = index(named).into_bytes();
        Repository::tiny().without(WEIGHTS).with(shard, &fixture(WEIGHTS)).with("model.safetensors.index.json", &index)
    };
    let found = World::of(sharded(shard));
    let folder = found.fetch(&[]).expect("a model").folder;
    assert!(fs::read(folder.join(shard)).expect("weights") == fixture(WEIGHTS));
    let asked = found.hub.asked().len();
    found.fetch(&[]).expect("from the cache");
    assert_eq!(found.hub.asked().len(), asked);
    for evil in ["../evil.safetensors", "/etc/passwd", "..", "a/b.safetensors", ""] {
        let world = World::of(sharded(evil).with("../evil.safetensors", b"evil").with("a/b.safetensors", b"evil"));
        let error = world.refusal(&[]);
        assert!(error.contains("only plain file names are accepted"), "{evil}: {error}");
        assert!(world.storage.asked().is_empty(), "{evil}");
    }
    let error = World::of(sharded("model-2.safetensors")).refusal(&[]);
    assert!(error.contains("names model-2.safetensors, which is not in the repository"), "{error}");
}

#[test]
fn the_token_goes_to_the_endpoint_and_nowhere_else() {
    let world = World::of(Repository::tiny());
    world.fetch(&[("HF_TOKEN", TOKEN)]).expect("a model");
    let bearer = format!("Bearer {TOKEN}");
    let authorization = |request: &Request| request.headers.get("authorization").cloned();
    assert!(world.hub.asked().iter().all(|request| authorization(request).as_ref() == Some(&bearer)));
    let stored = world.storage.asked();
    assert!(!stored.is_empty());
    assert!(!format!("{stored:?}").contains(TOKEN), "{stored:?}");
    // The token file does as well as the variable.
    let world = World::of(Repository::tiny());
    fs::create_dir_all(world.home.path().join("hf")).expect("a folder");
    fs::write(world.home.path().join("hf/token"), format!("{TOKEN}\n")).expect("written");
    world.fetch(&[]).expect("a model");
    assert!(world.hub.asked().iter().all(|request| authorization(request).as_ref() == Some(&bearer)));
    assert!(!format!("{:?}", world.storage.asked()).contains(TOKEN));
}

#[test]
fn a_hub_that_redirects_everything_elsewhere_gives_no_token_away() {
    let behind = World::of(Repository::tiny());
    let there = behind.hub.url.clone();
    let front = World::with(
        Repository::tiny(),
        move |request, _| Reply::status(308).with("Location", format!("{there}{}", request.path)),
        |_, reply| reply,
    );
    front.fetch(&[("HF_TOKEN", TOKEN)]).expect("a model");
    assert!(format!("{:?}", front.hub.asked()).contains(TOKEN));
    let (seen, stored) = (behind.hub.asked(), behind.storage.asked());
    assert!(seen.len() > 4 && stored.len() == 1);
    assert!(!format!("{seen:?}{stored:?}").contains(TOKEN), "{seen:?}");
}

#[test]
fn a_full_disk_is_named_with_what_to_do() {
    let world = World::of(Repository::tiny());
    fs::create_dir_all(world.blob("")).expect("a folder");
    let partial = world.blob(&format!("{}.incomplete", Repository::tiny().etag(WEIGHTS)));
    std::os::unix::fs::symlink("/dev/full", &partial).expect("a link");
    let error = world.refusal(&[]);
    for word in ["is full", "131 KiB more", "HF_HOME", "make room"] {
        assert!(error.contains(word), "{word}: {error}");
    }
    fs::remove_file(partial).expect("removed");
    world.fetch(&[]).expect("a model, now that there is room");
}

#[test]
fn two_programs_download_one_file_once() {
    let world = World::of(Repository::tiny());
    std::thread::scope(|scope| {
        let both: Vec<_> = (0..2).map(|_| scope.spawn(|| world.fetch(&[]).expect("a model"))).collect();
        let found: Vec<_> = both.into_iter().map(|one| one.join().expect("no panic")).collect();
        assert_eq!(found[0], found[1]);
    });
    assert_eq!(world.storage.asked().len(), 1);
}

#[test]
fn redirects_without_end_end() {
    let site = Site::start(|request| Reply::status(302).with("Location", request.path.clone()));
    let world = World { hub: site, storage: Site::start(|_| Reply::status(500)), ..World::of(Repository::tiny()) };
    let error = world.refusal(&[]);
    assert!(error.contains("redirects without end"), "{error}");
    assert_eq!(world.hub.asked().len(), 11);
}

#[test]
fn another_commit_than_the_one_that_was_asked_for_is_refused() {
    let other = "f".repeat(40);
    // The listing, or the description of a file, is about something else.
    for listing in [true, false] {
        let other = other.clone();
        let change = move |request: &Request, mut reply: Reply| {
            if listing == request.path.starts_with("/api/models/") {
                reply.body = String::from_utf8_lossy(&reply.body).replace(COMMIT, &other).into_bytes();
                for (name, value) in &mut reply.headers {
                    if *name == "X-Repo-Commit" {
                        *value = other.clone();
                    }
                }
            }
            reply
        };
        let world = World::with(Repository::tiny(), change, |_, reply| reply);
        let error = format!("{:#}", world.fetch_named(&format!("owner/tiny@{COMMIT}"), &[]).expect_err("another one"));
        assert!(error.contains(&"f".repeat(40)) && error.contains(COMMIT), "{error}");
        assert!(!world.cache().join("snapshots").join(COMMIT).join(WEIGHTS).exists());
    }
}
