//! One text column of a Parquet file, row by row. Built with `--features parquet`.

use std::fs::File;
use std::path::Path;

use parquet::basic::Type as Physical;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use parquet::schema::types::Type;

use crate::error::IoContext;
use crate::{Error, Result};

/// Gives the bytes of each row of `column` to `give`; a missing value is the empty text.
///
/// # Errors
/// When the file is damaged or has no such column of text.
pub fn text_column(
    path: &Path,
    column: &str,
    give: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let bad = |e: String| Error::input_at(path, e);
    let damaged = |e| bad(format!("damaged Parquet file: {e}"));
    let file = File::open(path).reading(path)?;
    let reader = SerializedFileReader::new(file).map_err(damaged)?;
    let schema = reader.metadata().file_metadata().schema();
    let names: Vec<&str> = schema.get_fields().iter().map(|f| f.name()).collect();
    let Some(field) = schema.get_fields().iter().find(|f| f.name() == column) else {
        return Err(bad(format!(
            "no column '{column}'; name the text's column with --field (there are {})",
            names.join(", ")
        )));
    };
    if !field.is_primitive() || field.get_physical_type() != Physical::BYTE_ARRAY {
        return Err(bad(format!("column '{column}' is no text")));
    }
    let projection = Type::group_type_builder(schema.name())
        .with_fields(vec![field.clone()])
        .build()
        .map_err(damaged)?;
    for row in reader.get_row_iter(Some(projection)).map_err(damaged)? {
        let row = row.map_err(damaged)?;
        match row.get_column_iter().next() {
            Some((_, Field::Str(text))) => give(text.as_bytes())?,
            Some((_, Field::Bytes(bytes))) => give(bytes.data())?,
            Some((_, Field::Null)) | None => give(b"")?,
            Some(_) => return Err(bad(format!("column '{column}' is no text"))),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::data_type::ByteArrayType;
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;
    use std::sync::Arc;

    #[test]
    fn rows_of_the_named_column_come_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.parquet");
        let schema = "message m { required int32 id; optional binary text (UTF8); }";
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let file = File::create(&path).unwrap();
        let properties = Arc::new(WriterProperties::builder().build());
        let mut writer = SerializedFileWriter::new(file, schema, properties).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut ids = group.next_column().unwrap().unwrap();
        ids.typed::<parquet::data_type::Int32Type>().write_batch(&[1, 2, 3], None, None).unwrap();
        ids.close().unwrap();
        let mut texts = group.next_column().unwrap().unwrap();
        let values = ["one".into(), "three\n".into()];
        texts.typed::<ByteArrayType>().write_batch(&values, Some(&[1, 0, 1]), None).unwrap();
        texts.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
        let mut rows = Vec::new();
        text_column(&path, "text", &mut |row| {
            rows.push(row.to_vec());
            Ok(())
        })
        .unwrap();
        assert_eq!(rows, [&b"one"[..], b"", b"three\n"]);
        assert!(text_column(&path, "body", &mut |_| Ok(())).is_err());
        assert!(text_column(&path, "id", &mut |_| Ok(())).is_err());
    }
}
