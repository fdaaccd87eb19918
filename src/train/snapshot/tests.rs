//! Snapshots that come back, and those that are damaged.

use super::*;
use burn::tensor::{Device, Tensor};

fn parameters(value: f32) -> Vec<Parameter> {
    let tensor = Tensor::<2>::full([3, 2], value, &Device::flex());
    let moment = (String::from("moment"), TensorView::of(tensor.clone() * 2.0));
    let memory = Exported { tensors: vec![moment], counters: [("time".to_string(), 7)].into() };
    let plain = Tensor::<1>::full([4], value, &Device::flex());
    vec![
        Parameter { path: "a.weight".into(), value: TensorView::of(tensor), memory: Some(memory) },
        Parameter { path: "a.bias".into(), value: TensorView::of(plain), memory: None },
    ]
}

#[test]
fn what_was_written_comes_back_and_the_newest_are_kept() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let snapshots = Snapshots::new(folder.path().join("snapshots"), 2);
    assert!(snapshots.newest::<String>()?.opened.is_none());
    for step in [1, 2, 10] {
        snapshots.write(step, &format!("state {step}"), parameters(step as f32))?;
    }
    assert_eq!(snapshots.list().iter().map(|found| found.step).collect::<Vec<_>>(), [10, 2]);
    let Newest { opened, damaged } = snapshots.newest::<String>()?;
    assert_eq!(damaged, [] as [String; 0]);
    let mut newest = opened.expect("a snapshot");
    assert_eq!((newest.found.step, newest.state.as_str()), (10, "state 10"));
    assert_eq!(newest.value("a.weight", &[3, 2])?, TensorData::new(vec![10f32; 6], [3, 2]));
    assert!(newest.value("a.weight", &[2, 3]).is_err());
    let memory = newest.memory("a.weight")?.expect("a memory");
    assert_eq!(memory.counters["time"], 7);
    assert_eq!(memory.tensors, [("moment".to_string(), TensorData::new(vec![20f32; 6], [3, 2]))]);
    assert!(newest.memory("a.bias")?.is_none());
    snapshots.clear()?;
    assert!(!snapshots.folder().exists());
    Ok(())
}

#[test]
fn a_damaged_snapshot_is_named_and_the_one_before_it_is_used() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let snapshots = Snapshots::new(folder.path().to_path_buf(), 3);
    let good = snapshots.write(4, &4, parameters(1.0))?;
    let bad = snapshots.write(5, &5, parameters(1.0))?;
    let whole = fs::read(&bad.path)?;
    for damage in [0, 9, whole.len() / 2, whole.len() - 1] {
        let mut bytes = whole.clone();
        bytes[damage] ^= 1;
        fs::write(&bad.path, bytes)?;
        let Newest { opened, damaged } = snapshots.newest::<u32>()?;
        let newest = opened.expect("the older one");
        assert_eq!((newest.found.path, newest.state), (good.path.clone(), 4));
        assert!(damaged.len() == 1 && damaged[0].contains(&bad.path.display().to_string()), "{damaged:?}");
    }
    for length in [0, 7, 8, whole.len() / 3] {
        fs::write(&bad.path, &whole[..length])?;
        assert_eq!(snapshots.newest::<u32>()?.opened.expect("the older one").state, 4);
    }
    Ok(())
}

#[test]
fn without_room_nothing_half_written_stays() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let place = folder.path().join("snapshots");
    fs::write(&place, "not a folder")?;
    let error = Snapshots::new(place, 1).write(1, &(), parameters(1.0)).expect_err("there is no folder");
    assert!(format!("{error:#}").contains("snapshots"));
    Ok(())
}

#[test]
fn damaged_ones_do_not_count_among_those_kept() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let snapshots = Snapshots::new(folder.path().to_path_buf(), 2);
    let steps = |snapshots: &Snapshots| snapshots.list().iter().map(|found| found.step).collect::<Vec<_>>();
    for step in [4, 8] {
        snapshots.write(step, &step, parameters(1.0))?;
    }
    for damaged in ["step-00000009-00000000.safetensors", "step-00000005-00000000.safetensors"] {
        fs::write(folder.path().join(damaged), "rubbish")?;
    }
    let eight = snapshots.list().remove(1);
    fs::write(&eight.path, "rubbish")?;
    // As a run does that went on from the fourth step.
    let found = snapshots.write(5, &5usize, parameters(1.0))?;
    assert!(found.path.is_file());
    assert_eq!(steps(&snapshots), [5, 4]);
    assert_eq!(snapshots.newest::<usize>()?.opened.expect("the new one").state, 5);
    snapshots.write(6, &6usize, parameters(1.0))?;
    assert_eq!(steps(&snapshots), [6, 5]);
    Ok(())
}

#[test]
fn what_another_version_can_go_on_from_is_not_passed_over() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let snapshots = Snapshots::new(folder.path().to_path_buf(), 3);
    snapshots.write(4, &4, parameters(1.0))?;
    snapshots.write(5, &"other settings", parameters(1.0))?;
    let error = format!("{:#}", snapshots.newest::<u32>().expect_err("its state is not a number"));
    assert!(error.contains("step-00000005-") && error.contains(OTHER), "{error}");
    let header = format!(r#"{{"version":{},"counters":{{}},"state":4}}"#, VERSION + 1);
    let beside = folder.path().join("beside");
    views::write(&beside, &[], &[(KEY.to_string(), header)].into())?;
    let newer = folder.path().join(file_name(KIND, 6, checksum(&beside)?));
    fs::rename(beside, newer)?;
    let error = format!("{:#}", snapshots.newest::<u32>().expect_err("another layout"));
    assert!(
        error.contains("is of layout 2, this autofit reads 1: resume it with the autofit that wrote it"),
        "{error}"
    );
    Ok(())
}
