//! Charts in SVG: text stays text, so no font is needed where the chart is made.

use std::collections::BTreeMap;

use plotters::prelude::*;

use crate::base::record::{BenchRecord, Status};
use crate::base::{Code, Error, Record, Result, units};

/// Median time over size, one line per op, dtype, device, variant and residency; both axes logarithmic; bars are the
/// 95 % intervals.
pub fn bench_svg(records: &[Record]) -> Result<String> {
    let mut lines: BTreeMap<String, Vec<(f64, f64, [f64; 2])>> = BTreeMap::new();
    let mut unit = String::new();
    for record in records {
        let Record::Bench(r) = record else { continue };
        if let Some(point) = point(r) {
            unit.clone_from(&r.subject.work_unit);
            lines.entry(name(r)).or_default().push(point);
        }
    }
    let all: Vec<_> = lines.values().flatten().collect();
    if all.is_empty() {
        return Err(Error::new(Code::BadArgument, "there is no measured row to draw"));
    }
    let span = |of: &dyn Fn(&(f64, f64, [f64; 2])) -> [f64; 2]| {
        let (low, high) = all.iter().fold((f64::INFINITY, 0f64), |(a, b), p| (a.min(of(p)[0]), b.max(of(p)[1])));
        (low / 1.3)..(high * 1.3)
    };
    let (x, y) = (span(&|p| [p.0; 2]), span(&|p| p.2));
    let mut svg = String::new();
    draw(&mut svg, &lines, &unit, x, y)
        .map_err(|e| Error::new(Code::Internal, format!("the chart could not be drawn: {e}")))?;
    Ok(svg)
}

/// Size in the unit of `--sizes`: elements, or the cube root of m·n·k.
fn point(r: &BenchRecord) -> Option<(f64, f64, [f64; 2])> {
    let (Some(median), Some(ci), Status::Ok) = (r.median_s, r.ci_s, r.subject.status) else { return None };
    let work = r.subject.work as f64;
    let size = if r.subject.work_unit == "dim" { work.cbrt() } else { work };
    (size > 0.0 && median > 0.0).then_some((size, median, ci))
}

fn name(r: &BenchRecord) -> String {
    let s = &r.subject;
    format!("{} {} {} {} {}", s.op, s.dtype, s.device, s.variant, r.residency)
}

type Lines = BTreeMap<String, Vec<(f64, f64, [f64; 2])>>;

fn draw(
    svg: &mut String,
    lines: &Lines,
    unit: &str,
    x: std::ops::Range<f64>,
    y: std::ops::Range<f64>,
) -> Result<(), Box<dyn std::error::Error>> {
    const COLORS: [RGBColor; 8] = [
        RGBColor(0, 114, 178),
        RGBColor(213, 94, 0),
        RGBColor(0, 158, 115),
        RGBColor(204, 121, 167),
        RGBColor(230, 159, 0),
        RGBColor(86, 180, 233),
        RGBColor(0, 0, 0),
        RGBColor(148, 103, 189),
    ];
    let root = SVGBackend::with_string(svg, (960, 600)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(84)
        .build_cartesian_2d(x.log_scale().base(2.0), y.log_scale())?;
    chart
        .configure_mesh()
        .x_labels(8)
        .y_labels(8)
        .max_light_lines(0)
        .x_desc(format!("size ({unit})"))
        .y_desc("median time per call")
        .x_label_formatter(&|v| format!("{v:.0}"))
        .y_label_formatter(&|v| units::seconds(*v))
        .axis_desc_style(("sans-serif", 15))
        .label_style(("sans-serif", 13))
        .draw()?;
    for (i, (name, points)) in lines.iter().enumerate() {
        let color = COLORS[i % COLORS.len()];
        let mut points = points.clone();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        chart
            .draw_series(LineSeries::new(points.iter().map(|p| (p.0, p.1)), color.stroke_width(2)))?
            .label(name.clone())
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(2)));
        chart.draw_series(points.iter().map(|p| Circle::new((p.0, p.1), 3, color.filled())))?;
        chart.draw_series(
            points.iter().map(|p| PathElement::new(vec![(p.0, p.2[0]), (p.0, p.2[1])], color.stroke_width(1))),
        )?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.4))
        .label_font(("sans-serif", 13))
        .draw()?;
    root.present()?;
    Ok(())
}
