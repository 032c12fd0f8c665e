//! `gpuctl explain`.

use crate::base::{Record, Result};
use crate::jobs::explain;
use crate::report;

use super::args;
use super::commands::Ctx;
use super::output;

impl Ctx<'_> {
    pub(super) fn explain(&self, a: &args::Explain) -> Result<u8> {
        let records = a.code.as_deref().map_or_else(|| Ok(explain::codes()), explain::find)?;
        if a.json.as_deref() != Some("-") {
            let text = match (&records[..], a.markdown) {
                (all, true) => {
                    let shown: Vec<_> = all.iter().filter(|r| a.code.is_some() || r.what == "error").cloned().collect();
                    report::explain::markdown(&shown)
                }
                (few, false) if few.len() < 5 => few.iter().map(report::explain::one).collect::<Vec<_>>().join("\n"),
                (all, false) => report::explain::table(all, output::width()),
            };
            output::data(&text)?;
        }
        let records = records.into_iter().map(|r| Record::Explain(Box::new(r))).collect();
        self.write_json(a.json.as_deref(), &self.document(Vec::new(), Vec::new(), records, true, 0))?;
        Ok(0)
    }
}
