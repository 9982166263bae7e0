use proptest::prelude::*;

use super::*;

fn write(path: &Path) -> Metadata {
    let meta = Metadata {
        config: json!({"arch": "ao-gpt", "n_layer": 2}),
        n_vocab_used: Some(50257),
        kind: Kind::Ema,
        ema_decay: Some(0.9999),
        step: 7,
        tokens_seen: 1 << 40,
        created_by: "test".into(),
        ..Metadata::default()
    };
    let entries = [
        ("a".to_owned(), DType::F32, vec![2, 2]),
        ("empty".to_owned(), DType::F32, vec![0, 3]),
        ("half".to_owned(), DType::BF16, vec![3]),
        ("count".to_owned(), DType::I64, vec![]),
    ];
    let mut writer = CheckpointWriter::create(path, false, &meta.to_map(), &entries).unwrap();
    writer.put_f32(&[1.0, -2.5]).unwrap();
    writer.put_f32(&[0.1, f32::MIN_POSITIVE]).unwrap();
    writer.put_f32(&[1.0, 0.5, f32::NAN]).unwrap();
    writer.put(&5i64.to_le_bytes()).unwrap();
    writer.finish().unwrap();
    meta
}

#[test]
fn what_is_written_is_read_back_by_us_and_by_the_reference_library() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.st");
    let meta = write(&path);
    let file = CheckpointFile::open(&path).unwrap();
    assert_eq!(file.ao_metadata().unwrap(), Some(meta));
    assert_eq!(file.names().collect::<Vec<_>>().len(), 4);
    assert_eq!(file.to_f32("a").unwrap(), [1.0, -2.5, 0.1, f32::MIN_POSITIVE]);
    assert_eq!(file.to_f32("half").unwrap()[..2], [1.0, 0.5]);
    assert_eq!(file.tensor("count").unwrap().bytes, 5i64.to_le_bytes());
    assert!(file.to_f32("count").is_err());
    file.check_finite("a").unwrap();
    let text = file.check_finite("half").unwrap_err();
    assert_eq!(text.exit_code(), 1);
    assert!(text.to_string().contains("tensor 'half': element 2 is NaN"), "{text}");

    let bytes = std::fs::read(&path).unwrap();
    let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(theirs.tensor("a").unwrap().shape(), [2, 2]);
    assert_eq!(theirs.tensor("a").unwrap().data(), file.tensor("a").unwrap().bytes);
}

#[test]
fn an_incomplete_checkpoint_is_refused_and_no_file_appears() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.st");
    let entries = [("x".to_owned(), DType::F32, vec![2])];
    let mut writer = CheckpointWriter::create(&path, false, &BTreeMap::new(), &entries).unwrap();
    writer.put_f32(&[1.0]).unwrap();
    let text = writer.finish().unwrap_err().to_string();
    assert!(text.contains("tensor 'x': only 4 of 8 bytes"), "{text}");
    assert!(!path.exists());
}

fn refusal(header: &str, data: usize) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h.st");
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    std::fs::write(&path, bytes).unwrap();
    let error = CheckpointFile::open(&path).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    error.to_string()
}

#[test]
fn hostile_headers_are_refused_by_tensor() {
    let x = r#""x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
    for (header, data, want) in [
        (format!("{{{x}}}"), 4, "tensor 'x': offsets 0..8 lie outside the 4 bytes"),
        (format!("{{{x}}}"), 12, "4 bytes follow the last tensor"),
        (format!("{{{x},{x}}}"), 8, "'x' stands there twice"),
        (x.replace("[2]", "[3]"), 8, "tensor 'x': shape [3] of F32 does not fill 8 bytes"),
        (x.replace("[2]", "[18446744073709551615,9]"), 8, "tensor 'x': shape"),
        (x.replace("[0,8]", "[8,0]"), 8, "tensor 'x': offsets 8..0"),
        (x.replace("[0,8]", "[4,12]"), 12, "tensor 'x': begins at byte 4 of the data and leaves"),
        (x.replace("F32", "F33"), 8, "tensor 'x': unknown variant `F33`"),
        (x.replace("[2]", "[-2]"), 8, "tensor 'x': invalid value"),
        (format!("{x},{}", x.replace("\"x\"", "\"y\"")), 8, "overlaps the one before it"),
        ("[".into(), 0, "broken safetensors header"),
        (r#""__metadata__":{"a":1}"#.into(), 0, "broken safetensors header"),
    ] {
        let header = if header.starts_with(['{', '[']) { header } else { format!("{{{header}}}") };
        let text = refusal(&header, data);
        assert!(text.contains(want), "{header}: {text}");
    }
}

#[test]
fn a_header_length_beyond_the_file_is_refused_without_allocating() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h.st");
    for bytes in [&b"abc"[..], &[0xff; 16], &u64::MAX.to_le_bytes()] {
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(CheckpointFile::open(&path).unwrap_err().exit_code(), 2);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn damage_anywhere_never_panics(at in 0usize..600, byte: u8, cut in 0usize..600) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.st");
        write(&path);
        let mut bytes = std::fs::read(&path).unwrap();
        let at = at % bytes.len();
        bytes[at] = byte;
        if cut < 300 {
            bytes.truncate(cut);
        }
        std::fs::write(&path, bytes).unwrap();
        if let Ok(file) = CheckpointFile::open(&path) {
            let _ = file.ao_metadata();
            for name in file.names() {
                let _ = (file.to_f32(name), file.check_finite(name));
            }
        }
    }
}
