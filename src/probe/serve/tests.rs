use super::*;
use crate::probe::protocol::prediction::Summary;

fn job(protocol: u32) -> String {
    format!(r#"{{"protocol":{protocol},"device":"cpu","cap_bytes":null,"task":{{"train":null}}}}"#) + "\n"
}

/// The messages that a worker answers to `input`.
fn served(input: &str, handler: impl FnMut(&Job, &mut dyn FnMut(Message)) -> Report) -> Vec<Message> {
    let mut output = Vec::new();
    serve_on(input.as_bytes(), &mut output, handler).unwrap();
    String::from_utf8(output).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The report to one job.
fn reported(handler: impl FnMut(&Job, &mut dyn FnMut(Message)) -> Report) -> Report {
    match served(&job(PROTOCOL), handler).pop() {
        Some(Message::Report(report)) => report,
        other => panic!("no report: {other:?}"),
    }
}

/// A report that is told from others by a number.
fn predicted(rows: u64) -> Report {
    Report::Predicted(Summary { rows, truncated: 0, max_length: 8, seconds: 1.0, peak_bytes: 0 })
}

fn measurement() -> Measurement {
    Measurement { loss: 1.0, parameter_sum: 2.0, ..Measurement::default() }
}

#[test]
fn answers_each_job_after_its_messages() {
    let mut count = 0;
    let messages = served(&format!("{}\n{}", job(PROTOCOL), job(PROTOCOL)), |job, emit| {
        assert_eq!(job.device, "cpu");
        emit(Message::Progress("working".into()));
        emit(Message::Report(Report::Failed { error: "not this one".into() }));
        count += 1;
        predicted(count)
    });
    assert_eq!(messages.len(), 4);
    assert!(matches!(&messages[0], Message::Progress(text) if text == "working"));
    assert!(matches!(&messages[3], Message::Report(report) if *report == predicted(2)));
}

#[test]
fn refuses_other_versions_before_it_looks_at_the_rest() {
    for (input, words) in [
        (job(PROTOCOL + 1), "use the same autofit"),
        (r#"{"protocol":99,"hieroglyphs":[]}"#.to_owned(), "protocol 99"),
        (r#"{"device":"cpu"}"#.to_owned(), "names no protocol"),
        (format!(r#"{{"protocol":{PROTOCOL}}}"#), "does not parse"),
        ("hello".to_owned(), "not JSON"),
    ] {
        let messages = served(&input, |_, _| panic!("must not be asked"));
        let [Message::Report(Report::Failed { error })] = messages.as_slice() else { panic!("{messages:?}") };
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_panic_is_an_answer() {
    let report = reported(|_, _| panic!("index {} out of bounds", 7));
    assert!(matches!(report, Report::Failed { error } if error.contains("panicked: index 7 out of bounds")));
    let report = reported(|_, _| panic::panic_any(7));
    assert!(matches!(report, Report::Failed { error } if error.contains("without words")));
}

#[test]
fn a_refusal_of_the_device_is_out_of_memory_and_of_the_host_a_failure() {
    let report = reported(|_, _| panic!("An IO error\n  out of device memory allocating 512 bytes\n"));
    let Report::OutOfMemory(record) = report else { panic!("{report:?}") };
    assert_eq!(record.requested, Some(512));
    let report = reported(|_, _| Report::Failed { error: "can't allocate buffer of size: 9".into() });
    assert!(matches!(report, Report::OutOfMemory(record) if record.requested == Some(9)));
    let report = reported(|_, _| Report::Failed { error: "Cannot allocate memory".into() });
    assert!(matches!(report, Report::Failed { .. }));
}

#[test]
fn what_is_not_finite_is_said_in_words() {
    let with = |change: fn(&mut Measurement)| {
        let mut measured = measurement();
        change(&mut measured);
        reported(move |_, _| Report::Measured(measured.clone()))
    };
    assert_eq!(with(|_| {}), Report::Measured(measurement()));
    assert!(matches!(with(|m| m.loss = f64::NAN), Report::NonFinite { what } if what.contains("loss is NaN")));
    assert!(matches!(with(|m| m.parameter_sum = f64::INFINITY), Report::NonFinite { what } if what.contains("inf")));
    assert!(matches!(with(|m| m.micro_seconds = vec![1.0, f64::NAN]), Report::Failed { .. }));
}

#[test]
fn a_job_without_line_end_is_still_a_job() {
    assert_eq!(served(job(PROTOCOL).trim_end(), |_, _| predicted(1)).len(), 1);
    assert!(served("", |_, _| panic!("must not be asked")).is_empty());
}

#[test]
fn a_driver_that_is_gone_ends_the_loop() {
    struct Gone;
    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let two = format!("{}{}", job(PROTOCOL), job(PROTOCOL));
    let mut asked = 0;
    let result = serve_on(two.as_bytes(), Gone, |_, _| {
        asked += 1;
        predicted(1)
    });
    assert!(format!("{:#}", result.unwrap_err()).contains("no longer listens"));
    assert_eq!(asked, 1);
}
