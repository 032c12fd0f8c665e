//! The JSON document.

use crate::base::{Code, Document, Error, Result};

/// The document, indented, with a final newline. Numbers that JSON cannot hold (NaN, infinities) become null.
pub fn document(doc: &Document) -> Result<String> {
    let mut text = serde_json::to_string_pretty(doc)
        .map_err(|e| Error::new(Code::Internal, "the records have no JSON form").caused_by(e))?;
    text.push('\n');
    Ok(text)
}

/// Reads a document back.
pub fn parse(text: &str) -> Result<Document> {
    let doc: Document = serde_json::from_str(text)
        .map_err(|e| Error::new(Code::BadArgument, "not a gpuctl JSON document").caused_by(e))?;
    if doc.schema != crate::base::record::SCHEMA {
        return Err(Error::new(Code::BadArgument, format!("the document has schema {}", doc.schema)));
    }
    Ok(doc)
}
