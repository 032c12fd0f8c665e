//! Charts in SVG and PNG. Labels are measured with an embedded font, so no font of the system is needed; an SVG keeps its
//! text as text.

mod bench;
mod calibrate;
mod stress;

use std::sync::OnceLock;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::base::{Code, Error, Record, Result};

/// DejaVu Sans, Latin letters only; its licence lies beside it.
const FONT: &[u8] = include_bytes!("labels.ttf");

/// Colours that people with the usual kinds of colour blindness tell apart (Okabe and Ito).
const COLORS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
    RGBColor(148, 103, 189),
];
const GREY: RGBColor = RGBColor(90, 90, 90);

/// The kind of file that a chart is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Scalable, text kept as text.
    Svg,
    /// Pixels.
    Png,
}

impl Format {
    /// By the path's ending. Errors: `BadArgument` for any other.
    pub fn of(path: &str) -> Result<Self> {
        match path.rsplit_once('.').map(|(_, e)| e.to_ascii_lowercase()).as_deref() {
            Some("svg") => Ok(Format::Svg),
            Some("png") => Ok(Format::Png),
            _ => {
                Err(Error::new(Code::BadArgument, format!("--plot {path}: expected a name that ends in .svg or .png")))
            }
        }
    }
}

/// A picture, and the number of things to draw that had no place in it; `None` if there was nothing to draw.
pub type Picture = Option<(Vec<u8>, usize)>;

/// The rows of `bench`: time over size, speed-up over size, and the phases of each device's calls.
///
/// Errors: `Internal` if it cannot be drawn.
pub fn bench(records: &[Record], format: Format) -> Result<Picture> {
    let Some(chart) = bench::Chart::of(records) else { return Ok(None) };
    render(format, chart.size(), &chart).map(|bytes| Some((bytes, 0)))
}

/// The first keys of `calibrate`, one row each: time of both sides and speed-up over size, with crossing and threshold.
///
/// Errors: `Internal` if it cannot be drawn.
pub fn calibrate(records: &[Record], format: Format) -> Result<Picture> {
    let Some((chart, left_out)) = calibrate::Chart::of(records) else { return Ok(None) };
    render(format, chart.size(), &chart).map(|bytes| Some((bytes, left_out)))
}

/// The course of a phase of `stress`: memory, throughput, times, ledger, and what the card told. `None` for fewer than two
/// samples.
///
/// Errors: `Internal` if it cannot be drawn.
pub fn stress(record: &crate::base::record::StressRecord) -> Result<Option<String>> {
    let Some(chart) = stress::Chart::of(record) else { return Ok(None) };
    let bytes = render(Format::Svg, chart.size(), &chart)?;
    let text = String::from_utf8(bytes);
    text.map(Some).map_err(|e| Error::new(Code::Internal, "the chart is no text").caused_by(e))
}

type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

/// Something that can be drawn on any kind of canvas.
trait Draw {
    fn draw<D: DrawingBackend>(&self, area: &DrawingArea<D, Shift>) -> Drawn
    where
        D::ErrorType: 'static;
}

fn register() -> Result<()> {
    static DONE: OnceLock<bool> = OnceLock::new();
    let done = DONE.get_or_init(|| plotters::style::register_font("sans-serif", FontStyle::Normal, FONT).is_ok());
    if *done { Ok(()) } else { Err(Error::new(Code::Internal, "the embedded font cannot be read")) }
}

fn render(format: Format, size: (u32, u32), chart: &impl Draw) -> Result<Vec<u8>> {
    register()?;
    let failed =
        |e: Box<dyn std::error::Error>| Error::new(Code::Internal, format!("the chart could not be drawn: {e}"));
    match format {
        Format::Svg => {
            let mut text = String::new();
            paint(&SVGBackend::with_string(&mut text, size).into_drawing_area(), chart).map_err(failed)?;
            Ok(text.into_bytes())
        }
        Format::Png => {
            let mut pixels = vec![0u8; 3 * size.0 as usize * size.1 as usize];
            paint(&BitMapBackend::with_buffer(&mut pixels, size).into_drawing_area(), chart).map_err(failed)?;
            png(&pixels, size).map_err(|e| failed(e.into()))
        }
    }
}

fn paint<D: DrawingBackend>(area: &DrawingArea<D, Shift>, chart: &impl Draw) -> Drawn
where
    D::ErrorType: 'static,
{
    area.fill(&WHITE)?;
    chart.draw(area)?;
    area.present()?;
    Ok(())
}

fn png(pixels: &[u8], size: (u32, u32)) -> std::result::Result<Vec<u8>, png::EncodingError> {
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, size.0, size.1);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(out)
}

fn label(size: i32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&RGBColor(40, 40, 40))
}

fn centred(size: i32) -> TextStyle<'static> {
    label(size).pos(Pos::new(HPos::Center, VPos::Center))
}

/// A measured size: (size, value, interval).
type Point = (f64, f64, [f64; 2]);

/// A named line.
#[derive(Clone, Debug)]
struct Line {
    name: String,
    color: RGBColor,
    points: Vec<Point>,
}

/// A place on the x axis with its interval.
#[derive(Clone, Copy, Debug)]
struct Crossing {
    at: f64,
    ci: [f64; 2],
    color: RGBColor,
}

/// One chart with two logarithmic axes.
struct Panel<'a> {
    title: &'a str,
    x: &'a str,
    y: &'a str,
    lines: &'a [Line],
    crossings: &'a [Crossing],
    y_label: fn(f64) -> String,
    /// A horizontal line.
    level: Option<f64>,
    /// Smallest and largest size, of all panels beside it.
    span: (f64, f64),
}

/// Sizes in binary thousands where they are round, else with three digits.
fn size_label(v: f64) -> String {
    let scaled = |unit: f64, name: &str| {
        let n = v / unit;
        if (n - n.round()).abs() < 1e-6 { format!("{n:.0}{name}") } else { format!("{n:.1}{name}") }
    };
    match v {
        v if v >= 1_073_741_824.0 => scaled(1_073_741_824.0, "Gi"),
        v if v >= 1_048_576.0 => scaled(1_048_576.0, "Mi"),
        v if v >= 1024.0 => scaled(1024.0, "Ki"),
        v if (v - v.round()).abs() < 1e-6 => format!("{v:.0}"),
        v => format!("{v:.1}"),
    }
}

/// Factors: `0.25x`, `8x`.
fn factor_label(v: f64) -> String {
    if v >= 10.0 { format!("{v:.0}x") } else { format!("{}x", (v * 1000.0).round() / 1000.0) }
}

/// The range of an axis around what is on it, at least a factor of `least` wide.
fn around(low: f64, high: f64, margin: f64, least: f64) -> std::ops::Range<f64> {
    let (low, high) = (low / margin, high * margin);
    let widen = (least / (high / low)).max(1.0).sqrt();
    (low / widen)..(high * widen)
}

impl Panel<'_> {
    fn draw<D: DrawingBackend>(&self, area: &DrawingArea<D, Shift>) -> Drawn
    where
        D::ErrorType: 'static,
    {
        let values = self.lines.iter().flat_map(|l| &l.points).flat_map(|p| [p.1, p.2[0], p.2[1]]).chain(self.level);
        let positive = values.filter(|v| v.is_finite() && *v > 0.0);
        let (low, high) = positive.fold((f64::INFINITY, 0f64), |(a, b), v| (a.min(v), b.max(v)));
        let (x, y) = (around(self.span.0, self.span.1, 1.15, 3.0), around(low, high, 1.25, 4.0));
        let (bottom, top) = (y.start, y.end);
        // Ticks at powers of 2 of a narrow axis, of 4 or 10 of a wide one.
        let x_base = if x.end / x.start > 1e4 { 4.0 } else { 2.0 };
        let y_base = match y.end / y.start {
            r if r <= 60.0 => 2.0,
            r if r <= 4096.0 && self.level.is_some() => 4.0,
            _ => 10.0,
        };
        let mut chart = ChartBuilder::on(area)
            .margin_right(18)
            .margin_left(6)
            .margin_top(4)
            .margin_bottom(14)
            .caption(self.title, label(15))
            .x_label_area_size(46)
            .y_label_area_size(78)
            .build_cartesian_2d(x.log_scale().base(x_base), y.log_scale().base(y_base))?;
        chart
            .configure_mesh()
            .x_labels(9)
            .y_labels(8)
            .max_light_lines(0)
            .bold_line_style(BLACK.mix(0.12))
            .axis_style(GREY)
            .x_desc(self.x)
            .y_desc(self.y)
            .x_label_formatter(&|v| size_label(*v))
            .y_label_formatter(&|v| (self.y_label)(*v))
            .axis_desc_style(label(14))
            .label_style(label(12))
            .draw()?;
        for c in self.crossings {
            let [a, b] = c.ci;
            chart.draw_series([Rectangle::new([(a, bottom), (b, top)], c.color.mix(0.15).filled())])?;
            chart.draw_series(DashedLineSeries::new([(c.at, bottom), (c.at, top)], 6, 4, c.color.stroke_width(2)))?;
        }
        if let Some(level) = self.level {
            let ends = [(self.span.0 / 1.15, level), (self.span.1 * 1.15, level)];
            chart.draw_series(LineSeries::new(ends, GREY.stroke_width(1)))?;
        }
        for line in self.lines {
            let band: Vec<(f64, f64)> = line.points.iter().map(|p| (p.0, p.2[1])).collect();
            let back = line.points.iter().rev().map(|p| (p.0, p.2[0]));
            let outline: Vec<(f64, f64)> = band.into_iter().chain(back).filter(|p| p.1 > 0.0).collect();
            if line.points.len() > 1 {
                chart.draw_series([Polygon::new(outline, line.color.mix(0.2).filled())])?;
            }
            let ends = |p: &Point| PathElement::new([(p.0, p.2[0]), (p.0, p.2[1])], line.color.stroke_width(1));
            chart.draw_series(line.points.iter().filter(|p| p.2[0] > 0.0).map(ends))?;
            chart.draw_series(LineSeries::new(line.points.iter().map(|p| (p.0, p.1)), line.color.stroke_width(2)))?;
            chart.draw_series(line.points.iter().map(|p| Circle::new((p.0, p.1), 3, line.color.filled())))?;
        }
        Ok(())
    }
}

/// Names beside coloured squares, so many in a row.
fn legend<D: DrawingBackend>(area: &DrawingArea<D, Shift>, entries: &[(String, RGBColor)], columns: usize) -> Drawn
where
    D::ErrorType: 'static,
{
    let (width, _) = area.dim_in_pixel();
    let step = (width as i32 - 28) / columns.max(1) as i32;
    for (i, (name, color)) in entries.iter().enumerate() {
        let (x, y) = (14 + step * (i % columns) as i32, 8 + ROW * (i / columns) as i32);
        area.draw(&Rectangle::new([(x, y), (x + 14, y + 10)], color.filled()))?;
        area.draw(&Text::new(clipped(name, step - 30), (x + 20, y - 2), label(13)))?;
    }
    Ok(())
}

/// Height of a row of a legend.
const ROW: i32 = 20;

/// The name as far as so many pixels hold it, at the size of a legend.
fn clipped(name: &str, pixels: i32) -> String {
    let fits = |text: &str| {
        let size = ("sans-serif", 13).into_font().box_size(text).map_or(0, |(w, _)| w as i32);
        size <= pixels
    };
    if fits(name) {
        return name.to_string();
    }
    let mut kept: Vec<char> = name.chars().collect();
    while !kept.is_empty() && !fits(&format!("{}…", kept.iter().collect::<String>())) {
        kept.pop();
    }
    format!("{}…", kept.into_iter().collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_decide_the_format() {
        assert_eq!(Format::of("a/b.svg").unwrap(), Format::Svg);
        assert_eq!(Format::of("B.PNG").unwrap(), Format::Png);
        for bad in ["x.jpg", "x", "svg", ""] {
            assert_eq!(Format::of(bad).unwrap_err().code(), Code::BadArgument, "{bad}");
        }
    }

    #[test]
    fn labels_are_short() {
        assert_eq!([16.0, 1024.0, 65_536.0, 1_048_576.0].map(size_label), ["16", "1Ki", "64Ki", "1Mi"]);
        assert_eq!([0.25, 1.0, 16.0].map(factor_label), ["0.25x", "1x", "16x"]);
        register().unwrap();
        assert_eq!(clipped("short", 200), "short");
        let long = clipped("a very long name of a line in a legend", 100);
        assert!(long.ends_with('…') && long.len() < 24, "{long}");
    }

    #[test]
    fn axes_hold_what_is_on_them() {
        let r = around(1.0, 100.0, 1.25, 4.0);
        assert!(r.start < 1.0 && r.end > 100.0);
        let one = around(5.0, 5.0, 1.25, 4.0);
        assert!((one.end / one.start - 4.0).abs() < 1e-9 && one.contains(&5.0));
    }
}
