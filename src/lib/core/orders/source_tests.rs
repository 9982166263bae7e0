use super::*;

/// A source over a file with these bytes; the folder lives as long as the source is used.
fn source(name: &str, bytes: &[u8]) -> (tempfile::TempDir, Result<OrderSource>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    let source = OrderSource::open(path.to_str().unwrap(), 4, 0);
    (dir, source)
}

fn pipe(bytes: &'static [u8]) -> Result<OrderSource> {
    Pipe::open(Box::new(bytes), Path::new("stdin")).map(OrderSource::Pipe)
}

fn row(source: &mut OrderSource, index: u64, length: usize) -> Result<Vec<u32>> {
    let mut out = Vec::new();
    source.row(index, length, &mut out)?;
    Ok(out)
}

fn refusal(result: Result<Vec<u32>>) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.exit_code(), 2);
    error.to_string()
}

#[test]
fn a_wider_row_keeps_the_entries_below_the_length_in_their_order() {
    let (_dir, source) = source("o.jsonl", b"[3,1,0,2]\n\n[0,1]");
    let mut source = source.unwrap();
    assert_eq!(source.rows(), Some(2));
    assert_eq!(row(&mut source, 0, 4).unwrap(), [3, 1, 0, 2]);
    assert_eq!(row(&mut source, 0, 3).unwrap(), [1, 0, 2]);
    let text = refusal(row(&mut source, 1, 3));
    assert!(text.contains("o.jsonl, row 1: 2 entries for a sequence of 3 tokens"), "{text}");
    let mut spec = OrderSource::open("r2l", 4, 0).unwrap();
    assert_eq!(row(&mut spec, 9, 3).unwrap(), [2, 1, 0]);
}

#[test]
fn rows_that_are_no_permutation_name_file_and_row() {
    for (line, want) in [
        ("[0,1,1]", "row 1: position 1 comes twice (entry 2)"),
        ("[0,3,1]", "row 1: entry 1 is 3; a row of 3 permutes 0 to 2"),
        ("[0,-1]", "line 2: not a JSON array"),
        ("[0,1.5]", "line 2: not a JSON array"),
        ("{\"order\":[0]}", "line 2: not a JSON array"),
        ("[]", "line 2: an order of no positions"),
        ("[0", "line 2: not a JSON array"),
        ("[99999999999]", "line 2: not a JSON array"),
    ] {
        let bytes = format!("[0,1]\n{line}\n");
        let (_dir, source) = source("o.jsonl", bytes.as_bytes());
        let text = refusal(row(&mut source.unwrap(), 1, 2));
        assert!(text.contains("o.jsonl") && text.contains(want), "{line}: {text}");
    }
    let mut bytes = npy::header(1, 2);
    npy::put_row(&[1, 1], 2, &mut bytes);
    let (_dir, source) = source("o.npy", &bytes);
    let text = refusal(row(&mut source.unwrap(), 0, 2));
    assert!(text.contains("o.npy, row 0: position 1 comes twice"), "{text}");
}

#[test]
fn too_few_rows_are_told_with_both_counts() {
    let (_dir, jsonl) = source("o.jsonl", b"[0]\n[0]\n");
    let mut jsonl = jsonl.unwrap();
    assert!(jsonl.require_rows(2).is_ok());
    let text = jsonl.require_rows(5).unwrap_err().to_string();
    assert!(text.contains("holds 2 rows of orders where 5 are needed"), "{text}");
    let mut bytes = npy::header(1, 1);
    npy::put_row(&[0], 2, &mut bytes);
    let (_dir, npy) = source("o.npy", &bytes);
    let text = refusal(row(&mut npy.unwrap(), 7, 1));
    assert!(text.contains("holds 1 rows of orders where 8 are needed"), "{text}");
    for text in
        [refusal(row(&mut jsonl, 3, 1)), refusal(row(&mut pipe(b"[0]\n[0]\n").unwrap(), 3, 1))]
    {
        assert!(text.contains("holds 2 rows of orders where 4 are needed"), "{text}");
    }
}

#[test]
fn a_pipe_only_moves_forward() {
    let mut source = pipe(b"[0,1]\n[1,0]\n[0,1]\n").unwrap();
    assert!(source.is_pipe());
    assert_eq!(row(&mut source, 1, 2).unwrap(), [1, 0]);
    let text = refusal(row(&mut source, 0, 2));
    assert!(text.contains("row 0 has gone by"), "{text}");
    assert_eq!(row(&mut source, 2, 2).unwrap(), [0, 1]);
}

#[test]
fn fixed_takes_the_first_row_of_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("one.jsonl");
    std::fs::write(&path, "[2,0,1]\n").unwrap();
    let arg = format!("fixed:@{}", path.display());
    let mut source = OrderSource::open(&arg, 3, 0).unwrap();
    assert_eq!(row(&mut source, 5, 3).unwrap(), [2, 0, 1]);
    assert!(OrderSource::open(&arg, 4, 0).is_err());
    assert!(OrderSource::open("fixed:@missing.npy", 4, 0).is_err());
}

#[test]
fn sources_describe_themselves_for_run_records() {
    let spec = OrderSource::open("mix:0.5*l2r+0.5*r2l", 4, 3).unwrap().describe();
    assert_eq!(spec, json!({"spec": "mix:0.5*l2r+0.5*r2l", "seed": 3, "block_size": 4}));
    let (_dir, jsonl) = source("o.jsonl", b"[0]\n");
    assert_eq!(jsonl.unwrap().describe()["xxh3"].as_str().unwrap().len(), 16);
}

#[test]
fn a_name_that_is_neither_spec_nor_file_is_told_as_a_spec() {
    let text = OrderSource::open("unifrom", 4, 0).map(|_| ()).unwrap_err().to_string();
    assert!(text.contains("character 5"), "{text}");
}
