//! Files as `torch.save` writes them, made by hand, and files that only look like them.
#![allow(dead_code)] // each test binary uses a part

/// A value to be pickled.
#[derive(Clone)]
pub enum V {
    None,
    Bool(bool),
    Int(i32),
    Float(f64),
    Text(String),
    List(Vec<V>),
    Dict(Vec<(String, V)>),
    /// A tensor on storage `key` of `count` elements of type `kind` (`Float`, `BFloat16`, …).
    Tensor {
        kind: &'static str,
        key: String,
        count: usize,
        offset: usize,
        shape: Vec<usize>,
        stride: Vec<usize>,
    },
    /// Opcodes.
    Raw(Vec<u8>),
}

/// A dictionary.
pub fn dict<const N: usize>(pairs: [(&str, V); N]) -> V {
    V::Dict(pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.push(b'X');
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.as_bytes());
}

fn int(out: &mut Vec<u8>, n: usize) {
    out.push(b'J');
    out.extend((n as i32).to_le_bytes());
}

fn sizes(out: &mut Vec<u8>, sizes: &[usize]) {
    out.push(b'(');
    sizes.iter().for_each(|&n| int(out, n));
    out.push(b't');
}

fn put(out: &mut Vec<u8>, value: &V) {
    match value {
        V::None => out.push(b'N'),
        V::Bool(b) => out.push(if *b { 0x88 } else { 0x89 }),
        V::Int(n) => {
            out.push(b'J');
            out.extend(n.to_le_bytes());
        }
        V::Float(x) => {
            out.push(b'G');
            out.extend(x.to_be_bytes());
        }
        V::Text(t) => text(out, t),
        V::List(items) => {
            out.extend(b"](");
            items.iter().for_each(|item| put(out, item));
            out.push(b'e');
        }
        V::Dict(pairs) => {
            out.extend(b"}(");
            for (key, value) in pairs {
                text(out, key);
                put(out, value);
            }
            out.push(b'u');
        }
        V::Tensor { kind, key, count, offset, shape, stride } => {
            out.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
            text(out, "storage");
            out.extend(format!("ctorch\n{kind}Storage\n").bytes());
            text(out, key);
            text(out, "cuda:0");
            int(out, *count);
            out.extend(b"tQ");
            int(out, *offset);
            sizes(out, shape);
            sizes(out, stride);
            out.extend(b"\x89ccollections\nOrderedDict\n)RtR");
        }
        V::Raw(bytes) => out.extend(bytes),
    }
}

/// The pickle of a value.
pub fn pickle(value: &V) -> Vec<u8> {
    let mut out = b"\x80\x02".to_vec();
    put(&mut out, value);
    out.push(b'.');
    out
}

/// CRC-32 as zip archives have it.
pub fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
}

/// A zip archive of entries stored by `method` (0: as they are).
pub fn zip(entries: &[(String, Vec<u8>)], method: u16) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in entries {
        let header = file.len() as u32;
        let mut common = vec![10, 0, 0, 0];
        common.extend(method.to_le_bytes());
        common.extend([0; 4]); // time and date
        common.extend(crc32(bytes).to_le_bytes());
        common.extend((bytes.len() as u32).to_le_bytes());
        common.extend((bytes.len() as u32).to_le_bytes());
        common.extend((name.len() as u16).to_le_bytes());
        common.extend([0; 2]); // extra
        file.extend([&b"PK\x03\x04"[..], &common, name.as_bytes(), bytes].concat());
        directory.extend([&b"PK\x01\x02\x0a\0"[..], &common, &[0; 10]].concat());
        directory.extend(header.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let count = (entries.len() as u16).to_le_bytes();
    let (start, size) = ((file.len() as u32).to_le_bytes(), (directory.len() as u32).to_le_bytes());
    file.extend(directory);
    file.extend([&b"PK\x05\x06\0\0\0\0"[..], &count, &count, &size, &start, &[0; 2]].concat());
    file
}

/// A model that is pickled tensor by tensor.
#[derive(Default, Clone)]
pub struct Builder {
    /// Bytes of each storage; its key is its place.
    pub storages: Vec<Vec<u8>>,
}

impl Builder {
    /// A row-major f32 tensor on a storage of its own.
    pub fn tensor(&mut self, shape: &[usize], numbers: &[f32]) -> V {
        let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.on("Float", bytes, numbers.len(), 0, shape, &row_major(shape))
    }

    /// Any tensor on a new storage.
    pub fn on(
        &mut self,
        kind: &'static str,
        bytes: Vec<u8>,
        count: usize,
        offset: usize,
        shape: &[usize],
        stride: &[usize],
    ) -> V {
        self.storages.push(bytes);
        let key = (self.storages.len() - 1).to_string();
        V::Tensor { kind, key, count, offset, shape: shape.to_vec(), stride: stride.to_vec() }
    }

    /// The entries of the archive.
    pub fn entries(&self, root: &V) -> Vec<(String, Vec<u8>)> {
        let mut entries = vec![
            ("ckpt/data.pkl".to_owned(), pickle(root)),
            ("ckpt/byteorder".to_owned(), b"little".to_vec()),
            ("ckpt/version".to_owned(), b"3\n".to_vec()),
        ];
        let storages = self.storages.iter().enumerate();
        entries.extend(storages.map(|(i, bytes)| (format!("ckpt/data/{i}"), bytes.clone())));
        entries
    }

    /// The file.
    pub fn file(&self, root: &V) -> Vec<u8> {
        zip(&self.entries(root), 0)
    }
}

/// Strides of a row-major tensor.
pub fn row_major(shape: &[usize]) -> Vec<usize> {
    (0..shape.len()).map(|i| shape[i + 1..].iter().product()).collect()
}
