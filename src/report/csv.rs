//! Bench records as CSV (RFC 4180), one line each, units in the header.

use crate::base::Record;

const HEADER: &str = "op,dtype,shape,attrs,work,work_unit,device,uid,ran_on,variant,residency,threads,status,reason,samples,\
median_s,ci_low_s,ci_high_s,min_s,p95_s,p99_s,gflops,gbps,alloc_s,h2d_s,launch_s,kernel_s,sync_s,d2h_s,speedup_vs_cpu,\
ceiling_fraction,ceiling,peak_fraction,transfer_fraction,launch_fraction,bottleneck,action,kernel_clock,cache,baseline,flags";

/// All bench records; other kinds have no CSV form and are left out.
pub fn bench(records: &[Record]) -> String {
    let mut out = String::from(HEADER);
    out.push('\n');
    for record in records {
        let Record::Bench(r) = record else { continue };
        let s = &r.subject;
        let attrs: Vec<_> = s.attrs.iter().map(|(n, v)| format!("{n}={v}")).collect();
        let number = |v: Option<f64>| v.map_or(String::new(), |v| format!("{v:e}"));
        let p = &r.phases_s;
        let cells = [
            s.op.clone(),
            s.dtype.to_string(),
            s.shape_text.clone(),
            attrs.join(" "),
            s.work.to_string(),
            s.work_unit.clone(),
            s.device.clone(),
            s.uid.clone(),
            s.ran_on.clone(),
            s.variant.clone(),
            r.residency.clone(),
            r.threads.to_string(),
            s.status.name().into(),
            s.reason.clone(),
            r.samples.to_string(),
            number(r.median_s),
            number(r.ci_s.map(|c| c[0])),
            number(r.ci_s.map(|c| c[1])),
            number(r.min_s),
            number(r.p95_s),
            number(r.p99_s),
            number(r.gflops),
            number(r.gbps),
            number(p.alloc),
            number(p.h2d),
            number(p.launch),
            number(p.kernel),
            number(p.sync),
            number(p.d2h),
            number(r.speedup_vs_cpu),
            number(r.analysis.ceiling_fraction),
            r.analysis.ceiling.clone(),
            number(r.peak_fraction),
            number(r.analysis.transfer_fraction),
            number(r.analysis.launch_fraction),
            r.analysis.bottleneck.clone(),
            r.analysis.action.clone(),
            p.kernel_clock.clone(),
            r.analysis.cache.clone(),
            r.analysis.baseline.clone(),
            s.flags.join(" "),
        ];
        let line: Vec<_> = cells.iter().map(|c| quoted(c)).collect();
        out.push_str(&line.join(","));
        out.push('\n');
    }
    out
}

fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_string() }
}

#[cfg(test)]
mod tests {
    #[test]
    fn cells_with_commas_are_quoted() {
        assert_eq!(super::quoted("m1,n2"), "\"m1,n2\"");
        assert_eq!(super::quoted("a\"b"), "\"a\"\"b\"");
        assert_eq!(super::HEADER.split(',').count(), 41);
    }
}
