//! Files of earlier layouts, table by table up to this build's.

use crate::base::{Code, Error, Result};

use super::{Kind, SCHEMA, seal};

/// What each layout needs to become the next: the first step leads from layout 1 to 2.
const STEPS: [fn(&mut toml::Table); SCHEMA as usize - 1] = [seals];

/// The layout that a file says it has. Refuses (`ProfileSchema`) what this build cannot read.
pub(super) fn layout(table: &toml::Table) -> Result<u32> {
    let refuse = |why: String| Err(Error::new(Code::ProfileSchema, why));
    match table.get("schema").map(toml::Value::as_integer) {
        Some(Some(v)) if (1..=i64::from(SCHEMA)).contains(&v) => Ok(v as u32),
        Some(Some(v)) if v > i64::from(SCHEMA) => {
            let by = table.get("gpuctl").and_then(toml::Value::as_str).unwrap_or("another version");
            refuse(format!(
                "layout {v}, this gpuctl ({}) reads 1 to {SCHEMA}; {by:?} wrote it",
                env!("CARGO_PKG_VERSION")
            ))
        }
        Some(Some(v)) => refuse(format!("layout {v} never was; this gpuctl reads 1 to {SCHEMA}")),
        Some(None) => refuse(format!("no schema: it must be a whole number; this gpuctl reads 1 to {SCHEMA}")),
        None => refuse(format!("no schema; this gpuctl reads 1 to {SCHEMA}")),
    }
}

/// True for the layout of a later build.
pub(super) fn is_later(table: &toml::Table) -> bool {
    table.get("schema").and_then(toml::Value::as_integer).is_some_and(|v| v > i64::from(SCHEMA))
}

/// Brings a file to this build's layout. Its bytes must be as they were written: the new seals vouch for its entries.
pub(super) fn migrate(table: &mut toml::Table) -> Result<()> {
    let from = layout(table)?;
    for step in STEPS.iter().skip(from as usize - 1) {
        step(table);
    }
    table.insert("schema".into(), toml::Value::Integer(i64::from(SCHEMA)));
    Ok(())
}

/// 1 to 2: each entry of a calibrated profile has a seal. That the digest held is what vouches for the entries.
fn seals(table: &mut toml::Table) {
    if table.get("kind").and_then(toml::Value::as_str) == Some(Kind::Preset.name()) {
        return;
    }
    let ground = seal::Ground::of(table);
    let seals: Vec<String> = seal::entries(table).map(|e| ground.seal(e)).collect();
    let list = table.get_mut("entry").and_then(toml::Value::as_array_mut);
    let tables = list.into_iter().flatten().filter_map(toml::Value::as_table_mut);
    for (entry, seal) in tables.zip(seals) {
        entry.insert(seal::KEY.into(), toml::Value::String(seal));
    }
}
