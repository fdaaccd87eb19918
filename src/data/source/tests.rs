use std::fs;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

/// A file of the given name and content, and the folder that keeps it alive.
fn file(name: &str, content: impl AsRef<[u8]>) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join(name);
    fs::write(&path, content).expect("a temporary file");
    (folder, path)
}

fn table(name: &str, content: impl AsRef<[u8]>) -> Result<Table> {
    let (_folder, path) = file(name, content);
    read(&path, &Columns::default(), LabelKind::Auto)
}

/// The error without the folder's name.
fn error_of(name: &str, content: impl AsRef<[u8]>, columns: &Columns, kind: LabelKind) -> String {
    let (folder, path) = file(name, content);
    let error = format!("{:#}", read(&path, columns, kind).expect_err("an error"));
    error.replace(&format!("{}/", folder.path().display()), "")
}

fn error(name: &str, content: impl AsRef<[u8]>) -> String {
    error_of(name, content, &Columns::default(), LabelKind::Auto)
}

fn summary(table: &Table) -> Vec<(&str, &str, u64)> {
    table.rows.iter().map(|r| (r.text.as_str(), r.label.as_deref().unwrap_or("-"), r.line)).collect()
}

#[test]
fn csv_with_everything_that_spreadsheets_do() {
    let content = "\u{feff}id,label,text\r\n1,pos,\"two\r\nlines, \"\"quoted\"\"\"\r\n\r\n2, neg ,plain\r\n3,pos,last";
    let table = table("a.csv", content).expect("valid");
    let expected = [("two\r\nlines, \"quoted\"", "pos", 2), ("plain", "neg", 5), ("last", "pos", 6)];
    assert_eq!(summary(&table), expected);
    assert_eq!((table.kind, table.warnings.len()), (TargetKind::Classes, 0));
}

#[test]
fn tsv_and_pairs() {
    let columns = Columns { text: "a".into(), pair: Some("b".into()), label: None };
    let (_folder, path) = file("a.TSV", "a\tb\tc\nx, y\tz\t0\n\tw\t1\n");
    let table = read(&path, &columns, LabelKind::Auto).expect("valid");
    assert_eq!(table.rows[0].text, "x, y");
    assert_eq!(table.rows[0].pair.as_deref(), Some("z"));
    assert_eq!(table.kind, TargetKind::Absent);
    assert!(table.warnings[0].contains("1 of 2 records have an empty \"a\" (the first on line 3)"));
}

#[test]
fn jsonl_with_every_kind_of_label() {
    let content = "\u{feff}{\"text\":\"a\",\"label\":\" x \"}\r\n\n{\"label\":3,\"text\":\"b\\nc\"}\n\
                   {\"text\":\"\",\"label\":true}\n{\"text\":\"d\\u0000\",\"label\":-0.5,\"more\":[1]}";
    let table = table("a.jsonl", content).expect("valid");
    assert_eq!(summary(&table), [("a", "x", 1), ("b\nc", "3", 3), ("", "true", 4), ("d\0", "-0.5", 5)]);
    assert_eq!(table.kind, TargetKind::Classes);
}

#[test]
fn numbers_are_recognised_by_a_fraction() {
    let kind = |labels: &[&str]| {
        let rows: String = labels.iter().map(|label| format!("t,{label}\n")).collect();
        table("a.csv", format!("text,label\n{rows}")).expect("valid").kind
    };
    assert_eq!(kind(&["3.8", "0", "5e0"]), TargetKind::Numbers);
    assert_eq!(kind(&["0", "1", "2"]), TargetKind::Classes);
    assert_eq!(kind(&["0.0", "1.0"]), TargetKind::Classes);
    assert_eq!(kind(&["0.5", "nan"]), TargetKind::Classes);
    assert_eq!(kind(&["1.2", "1.2.1"]), TargetKind::Classes);
}

#[test]
fn regression_needs_finite_numbers() {
    for label in ["good", "inf", "1e99", "1,5"] {
        let content = format!("text,label\na,1\nb,\"{label}\"\n");
        let error = error_of("a.csv", content, &Columns::default(), LabelKind::Number);
        assert!(error.starts_with(&format!("a.csv, line 3: the label \"{label}\" is not a finite number")), "{error}");
    }
    let (_folder, path) = file("a.csv", "text,label\na,1\nb,2\n");
    let table = read(&path, &Columns::default(), LabelKind::Number).expect("valid");
    assert_eq!(table.kind, TargetKind::Numbers);
}

#[test]
fn complains_about_missing_content() {
    assert!(error("a.csv", "").starts_with("a.csv is empty: a header line"));
    assert!(error("a.csv", "\u{feff}\r\n\n").starts_with("a.csv is empty"));
    assert!(error("a.csv", "text,label\n").starts_with("a.csv has no records"));
    assert!(error("a.jsonl", "\n \n").starts_with("a.jsonl is empty: one JSON object a line"));
    assert!(
        error("a.csv", "text,label\na,pos\nb, \n").starts_with("a.csv, line 3: the label in column \"label\" is em")
    );
    assert!(
        error("a.json", "{\"text\":\"a\",\"label\":\"\"}").starts_with("a.json, line 1: the label \"label\" is em")
    );
}

#[test]
fn complains_about_columns_with_advice() {
    let said = error("a.csv", "\n\nTexts,label,idx\na,b,c\n");
    let expected = "a.csv, line 3: there is no column \"text\" among \"Texts\", \"label\", \"idx\": \
                    did you mean --text-column \"Texts\"?";
    assert_eq!(said, expected);
    let said = error("a.csv", "text,sentiment\na,b\n");
    assert!(said.ends_with("among \"text\", \"sentiment\": name the right one with --label-column"), "{said}");
    let said = error("a.csv", "text,label,text\na,b,c\n");
    assert_eq!(said, "a.csv, line 1: columns 1 and 3 are both called \"text\": rename the other one");
    assert!(table("a.csv", "text,label,x,x\na,b,c,d\n").is_ok());
    let said = error("a.jsonl", "{\"text\":\"a\",\"label\":1}\n{\"text\":\"b\",\"labels\":1}\n");
    assert!(said.starts_with("a.jsonl, line 2: there is no key \"label\" among"), "{said}");
    assert!(said.ends_with("did you mean --label-column \"labels\"?"), "{said}");
    let pair = Columns { pair: Some("text_b".into()), ..Columns::default() };
    let said = error_of("a.csv", "text,label\na,b\n", &pair, LabelKind::Auto);
    assert!(said.contains("--text-pair-column"), "{said}");
}

#[test]
fn complains_about_the_line_on_which_the_record_starts() {
    let said = error("a.csv", "text,label\r\n\"a\r\nb\",pos\r\n\r\nc,neg,more\r\n");
    assert!(said.starts_with("a.csv, line 5: 3 fields where the header has 2: put"), "{said}");
    assert!(error("a.csv", "text,label\na\n").starts_with("a.csv, line 2: 1 field where"));
}

#[test]
fn finds_quotes_that_swallow_records() {
    let to_the_end = error("a.csv", "label,text\nx,fine\ny,\"open\nx,more\ny,end\n");
    assert!(to_the_end.starts_with("a.csv, line 3: the record that starts here runs to line 5 "), "{to_the_end}");
    let to_the_next = error("a.csv", "label,text\ny,\"open\nx,fine\ny,\"quoted\"\nx,fine\n");
    assert!(to_the_next.starts_with("a.csv, line 2: the record that starts here runs to line 4 "), "{to_the_next}");
    assert!(to_the_next.contains("its 3 quotation marks do not seem to pair up"), "{to_the_next}");
    let fine = table("a.csv", "label,text\nx,5\" disk\ny,\"two\n\"\"lines\"\"\"\nx,'\"'\n").expect("valid");
    assert_eq!(fine.rows[1].text, "two\n\"lines\"");
}

#[test]
fn complains_about_json() {
    let first = "{\"text\":\"a\",\"label\":1}\n";
    let said = |line: &str| error("a.jsonl", format!("{first}{line}\n"));
    assert!(said("{\"text\": 'b'}").starts_with("a.jsonl, line 2: not valid JSON at column 10: expected value"));
    assert!(said("[{}]").starts_with("a.jsonl, line 2: a JSON array where"));
    assert!(said("{").contains("does not end on its line: write one object a line"));
    assert!(said("7").contains("a number where an object is needed, as in {\"text\": …}"));
    assert!(said("{\"text\":null,\"label\":1}").contains("\"text\" is null, not a string"));
    assert!(said("{\"text\":\"b\",\"label\":null}").contains("the label \"label\" is null"));
}

#[test]
fn complains_about_bytes_and_files() {
    let said = error("a.csv", b"text,label\nfine,x\ncaf\xE9,y\n");
    assert!(said.starts_with("a.csv, line 3, byte 4: byte 0xE9 is not UTF-8"), "{said}");
    let said = error("a.jsonl", b"{\"text\":\"\xFF\"}\n");
    assert!(said.starts_with("a.jsonl, line 1, byte 10: byte 0xFF is not UTF-8"), "{said}");
    assert!(error("a.csv", b"\xFF\xFEt\0e\0").contains("this is UTF-16"));
    assert!(error("a.parquet", "x").contains("can't tell the format of a.parquet"));
    assert!(error("a.csv.gz", "x").contains("is compressed"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let said = |path: &Path| format!("{:#}", read(path, &Columns::default(), LabelKind::Auto).expect_err("an error"));
    assert!(said(folder.path()).contains("is a directory"));
    assert!(said(&folder.path().join("no.csv")).contains("there is no such file"));
}

#[test]
#[cfg(unix)]
fn complains_about_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let (_folder, path) = file("a.csv", "text,label\na,b\n");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).expect("chmod");
    match fs::File::open(&path) {
        // The superuser may read everything, so for it there is nothing to complain about.
        Ok(_) => assert!(read(&path, &Columns::default(), LabelKind::Auto).is_ok()),
        Err(_) => {
            let error = format!("{:#}", read(&path, &Columns::default(), LabelKind::Auto).expect_err("no permission"));
            assert!(error.contains("you may not read it"), "{error}");
        }
    }
}

#[test]
fn long_rows_and_nul_bytes_pass() {
    let long = "word \0 é\n".repeat(1 << 17);
    let table = table("a.csv", format!("text,label\n\"{long}\",x\nshort,y\n")).expect("valid");
    assert_eq!(table.rows[0].text, long);
    assert_eq!(table.rows[1].line, 2 + (1 << 17) + 1);
}

#[test]
fn a_stream_stops_at_the_first_error() {
    let (_folder, path) = file("a.csv", "text\na\nb,c\nd\n");
    let columns = Columns { label: None, ..Columns::default() };
    let items: Vec<_> = stream(&path, &columns).expect("a header").collect();
    assert_eq!(items.len(), 2);
    assert_eq!(items[0].as_ref().expect("a row").text, "a");
    assert!(items[1].is_err());
}

proptest! {
    #[test]
    fn csv_round_trip(rows in proptest::collection::vec(("[a-c\",;\r\n\t é]{0,12}", "[a-z]{1,3}"), 1..12)) {
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(["text", "label"]).expect("in memory");
        for (text, label) in &rows {
            writer.write_record([text, label]).expect("in memory");
        }
        let content = writer.into_inner().expect("in memory");
        let lines: Vec<u64> = rows.iter().scan(2, |line, (text, _)| {
            let start = *line;
            *line += 1 + text.replace("\r\n", "\n").matches(['\n', '\r']).count() as u64;
            Some(start)
        }).collect();
        let table = table("a.csv", content).expect("valid");
        prop_assert_eq!(table.rows.len(), rows.len());
        for ((row, (text, label)), line) in table.rows.iter().zip(&rows).zip(lines) {
            prop_assert_eq!(&row.text, text);
            prop_assert_eq!(row.label.as_ref(), Some(label));
            prop_assert_eq!(row.line, line);
        }
    }

    #[test]
    fn jsonl_round_trip(rows in proptest::collection::vec((any::<String>(), any::<i64>()), 1..12)) {
        let content: String = rows
            .iter()
            .map(|(text, label)| format!("{}\n", serde_json::json!({"text": text, "label": label})))
            .collect();
        let table = table("a.jsonl", content).expect("valid");
        prop_assert_eq!(table.rows.len(), rows.len());
        for (i, (row, (text, label))) in table.rows.iter().zip(&rows).enumerate() {
            prop_assert_eq!(&row.text, text);
            prop_assert_eq!(row.label.clone(), Some(label.to_string()));
            prop_assert_eq!(row.line, i as u64 + 1);
        }
    }

    #[test]
    fn garbage_never_panics(content in proptest::collection::vec(any::<u8>(), 0..80)) {
        for name in ["a.csv", "a.tsv", "a.jsonl"] {
            let _ = table(name, [b"text,label\n".as_slice(), &content].concat());
            let _ = table(name, &content);
        }
    }
}
