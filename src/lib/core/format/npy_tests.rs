use proptest::prelude::*;

use super::*;

/// An .npy file with this dict and data.
fn file(dict: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((dict.len() as u16).to_le_bytes());
    bytes.extend(dict.as_bytes());
    bytes.extend(data);
    bytes
}

fn open(bytes: &[u8]) -> Result<NpyFile> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("o.npy");
    std::fs::write(&path, bytes).unwrap();
    NpyFile::open(&path)
}

#[test]
fn our_header_is_what_numpy_writes() {
    // numpy.save(f, numpy.zeros((10, 4), '<u2')), first 128 bytes
    let mut want = b"\x93NUMPY\x01\x00v\x00".to_vec();
    want.extend(b"{'descr': '<u2', 'fortran_order': False, 'shape': (10, 4), }");
    want.resize(127, b' ');
    want.push(b'\n');
    assert_eq!(header(10, 4), want);
    for (rows, width) in [(0, 1), (u64::MAX, 70_000), (1, 65_536)] {
        assert_eq!(header(rows, width).len() % 64, 0);
    }
}

#[test]
fn rows_come_back_from_a_file_and_from_a_stream() {
    for width in [3, 70_000] {
        let rows: Vec<Vec<u32>> =
            (0..4).map(|i| (0..width as u32).map(|k| (k + i) % width as u32).collect()).collect();
        let mut bytes = header(4, width);
        rows.iter().for_each(|row| put_row(row, entry_size(width), &mut bytes));
        let file = open(&bytes).unwrap();
        bytes.extend(b"what follows on a pipe");
        let mut stream = NpyReader::new(&bytes[..], Path::new("stdin")).unwrap();
        let mut row = Vec::new();
        for (i, want) in rows.iter().enumerate() {
            file.row(i as u64, &mut row).unwrap();
            assert_eq!(&row, want);
            assert!(stream.next_row(&mut row).unwrap());
            assert_eq!(&row, want);
        }
        assert!(!stream.next_row(&mut row).unwrap());
        assert!(file.row(4, &mut row).is_err());
    }
}

#[test]
fn integer_types_of_numpy_are_read() {
    for (descr, data) in [
        ("|u1", vec![1, 0]),
        ("<i2", vec![1, 0, 0, 0]),
        ("<i4", vec![1, 0, 0, 0, 0, 0, 0, 0]),
        ("<i8", vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    ] {
        let dict = format!("{{\"shape\": (2,), 'fortran_order':False,'descr': '{descr}'}}");
        let file = open(&self::file(&dict, &data)).unwrap();
        let mut row = Vec::new();
        file.row(0, &mut row).unwrap();
        assert_eq!(row, [1, 0], "{descr}");
    }
}

#[test]
fn hostile_files_are_refused_in_one_line() {
    let dict = "{'descr': '<u2', 'fortran_order': False, 'shape': (1, 2), }";
    let good = file(dict, &[0, 0, 1, 0]);
    open(&good).unwrap();
    let mut long_header = b"\x93NUMPY\x02\x00".to_vec();
    long_header.extend(u32::MAX.to_le_bytes());
    let mut version = good.clone();
    version[6] = 9;
    for (bytes, want) in [
        (b"\x93NUM".to_vec(), "magic"),
        (b"hello world".to_vec(), "magic"),
        (version, "npy version 9"),
        (long_header, "at most 65536"),
        (good[..9].to_vec(), "cut short"),
        (good[..20].to_vec(), "cut short"),
        (good[..good.len() - 1].to_vec(), "holds 3 bytes of data where shape (1, 2) takes 4"),
        (file(dict, &[0; 5]), "too long"),
        (file(&dict.replace("<u2", ">u2"), &[0; 4]), "dtype '>u2'"),
        (file(&dict.replace("<u2", "|O"), &[0; 4]), "dtype '|O'"),
        (file(&dict.replace("False", "True"), &[0; 4]), "Fortran order"),
        (file(&dict.replace("(1, 2)", "(1, 2, 1)"), &[0; 4]), "3 dimensions"),
        (file(&dict.replace("(1, 2)", "()"), &[0; 4]), "0 dimensions"),
        (file(&dict.replace("(1, 2)", "(1, 0)"), &[]), "no entries"),
        (file(&dict.replace("(1, 2)", "(18446744073709551615, 2)"), &[0; 4]), "not fit 64 bits"),
        (file(&dict.replace("(1, 2)", "(9, 18446744073709551615)"), &[0; 4]), "not fit 64 bits"),
        (file(&dict.replace("(1, 2)", "(-1, 2)"), &[0; 4]), "no dict"),
        (file(&dict.replace("'shape'", "'shapes'"), &[0; 4]), "no dict"),
        (file("{'descr': '<u2'}", &[]), "no dict"),
        (file("__import__('os')", &[]), "no dict"),
        (file(&format!("{dict}{dict}"), &[0; 4]), "no dict"),
    ] {
        let error = open(&bytes).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        let text = error.to_string();
        assert!(text.contains(want), "{want}: {text}");
    }
}

#[test]
fn a_negative_entry_names_its_row() {
    let dict = "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 1), }";
    let mut data = vec![0; 8];
    data.extend((-1i64).to_le_bytes());
    let text = open(&file(dict, &data)).unwrap().row(1, &mut Vec::new()).unwrap_err().to_string();
    assert!(text.contains("row 1: entry 0 is negative"), "{text}");
}

#[test]
fn a_stream_that_ends_early_says_where() {
    let mut bytes = header(3, 2);
    bytes.extend([0, 0, 1, 0, 1]);
    let mut stream = NpyReader::new(&bytes[..], Path::new("stdin")).unwrap();
    assert!(stream.next_row(&mut Vec::new()).unwrap());
    let text = stream.next_row(&mut Vec::new()).unwrap_err().to_string();
    assert!(text.contains("stdin: ends in row 1 of the 3"), "{text}");
}

proptest! {
    #[test]
    fn damage_never_panics(at in 0usize..132, byte: u8, cut in 0usize..300) {
        let mut bytes = header(1, 2);
        bytes.extend([0, 0, 1, 0]);
        let length = bytes.len();
        bytes[at % length] = byte;
        bytes.truncate(cut);
        let _ = open(&bytes);
        if let Ok(mut stream) = NpyReader::new(&bytes[..], Path::new("stdin")) {
            let _ = stream.next_row(&mut Vec::new());
        }
    }
}
