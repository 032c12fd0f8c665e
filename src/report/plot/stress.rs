//! The course of a phase of `stress`.

use crate::base::record::{StressRecord, StressSample};

use super::*;

const WIDTH: u32 = 1000;
const PANEL: u32 = 210;
const MIB: f64 = 1024.0 * 1024.0;

/// A figure over time.
struct Course {
    name: &'static str,
    points: Vec<(f64, f64)>,
}

/// Figures with one unit.
struct Plot {
    title: &'static str,
    courses: Vec<Course>,
}

pub(super) struct Chart {
    plots: Vec<Plot>,
    span: (f64, f64),
}

type Figure = fn(&StressSample) -> Option<f64>;

/// What is drawn, where it was told.
const PLOTS: [(&str, &[(&str, Figure)]); 6] = [
    ("resident memory (MiB)", &[("worker", |s| s.rss_bytes.map(|b| b as f64 / MIB))]),
    ("cycles a second", &[("rate", |s| Some(s.rate))]),
    ("time of a cycle (ms)", &[("median", |s| s.p50_s.map(|p| 1e3 * p)), ("99 %", |s| s.p99_s.map(|p| 1e3 * p))]),
    (
        "live objects, nothing held",
        &[
            ("buffers", |s| Some(s.buffers as f64)),
            ("pinned", |s| Some(s.pinned as f64)),
            ("queues", |s| Some(s.queues as f64)),
            ("programs", |s| Some(s.programs as f64)),
            ("events", |s| Some(s.events as f64)),
        ],
    ),
    ("card: temperature (°C), power (W)", &[("°C", |s| s.temperature_c), ("W", |s| s.power_w)]),
    (
        "card: memory in use (MiB)",
        &[
            ("all", |s| s.device_used_bytes.map(|b| b as f64 / MIB)),
            ("worker", |s| s.device_own_bytes.map(|b| b as f64 / MIB)),
            ("others", |s| s.device_other_bytes.map(|b| b as f64 / MIB)),
        ],
    ),
];

impl Chart {
    pub(super) fn of(record: &StressRecord) -> Option<Self> {
        let course = |(name, of): &(&'static str, Figure)| {
            let told = |s: &StressSample| of(s).map(|v| (s.t, v)).filter(|p| p.0.is_finite() && p.1.is_finite());
            let points: Vec<(f64, f64)> = record.series.iter().filter_map(told).collect();
            (points.len() > 1).then_some(Course { name, points })
        };
        let plots: Vec<Plot> = PLOTS
            .iter()
            .map(|(title, figures)| Plot { title, courses: figures.iter().filter_map(course).collect() })
            .filter(|p| !p.courses.is_empty())
            .collect();
        let times = || plots.iter().flat_map(|p| &p.courses).flat_map(|c| &c.points).map(|p| p.0);
        let span = (times().fold(f64::INFINITY, f64::min), times().fold(f64::NEG_INFINITY, f64::max));
        (span.1 > span.0).then_some(Chart { plots, span })
    }

    pub(super) fn size(&self) -> (u32, u32) {
        (WIDTH, PANEL * (self.plots.len() as u32).div_ceil(2))
    }

    fn plot<D: DrawingBackend>(&self, area: &DrawingArea<D, Shift>, plot: &Plot) -> Drawn
    where
        D::ErrorType: 'static,
    {
        let values = || plot.courses.iter().flat_map(|c| &c.points).map(|p| p.1);
        let most = values().fold(f64::NEG_INFINITY, f64::max);
        // From zero: a noise of one percent must not look like a fall. Names need some room above the lines.
        let room = if plot.courses.len() > 1 { 1.35 } else { 1.1 };
        let (low, high) = (values().fold(0.0, f64::min), if most > 0.0 { room * most } else { 1.0 });
        let mut chart = ChartBuilder::on(area)
            .margin_right(18)
            .margin_left(6)
            .margin_bottom(4)
            .caption(plot.title, label(14))
            .x_label_area_size(22)
            .y_label_area_size(62)
            .build_cartesian_2d(self.span.0..self.span.1, low..high)?;
        chart
            .configure_mesh()
            .x_labels(7)
            .y_labels(5)
            .max_light_lines(0)
            .bold_line_style(BLACK.mix(0.12))
            .axis_style(GREY)
            .x_label_formatter(&|t| moment(*t))
            .y_label_formatter(&|v| figure(*v))
            .label_style(label(11))
            .draw()?;
        for (course, color) in plot.courses.iter().zip(COLORS) {
            chart.draw_series(LineSeries::new(course.points.iter().copied(), color.stroke_width(2)))?;
        }
        if plot.courses.len() > 1 {
            let mut x = 76;
            for (course, color) in plot.courses.iter().zip(COLORS) {
                area.draw(&Rectangle::new([(x, 26), (x + 10, 34)], color.filled()))?;
                area.draw(&Text::new(course.name, (x + 14, 24), label(11)))?;
                x += 30 + 7 * course.name.chars().count() as i32;
            }
        }
        Ok(())
    }
}

/// A moment of a phase: `90 s`, `15 min`, `6.5 h`.
fn moment(t: f64) -> String {
    match t {
        t if t < 180.0 => format!("{} s", figure(t)),
        t if t < 7200.0 => format!("{} min", figure(t / 60.0)),
        t => format!("{} h", figure(t / 3600.0)),
    }
}

fn figure(v: f64) -> String {
    match v.abs() {
        a if a >= 1e6 => format!("{:.3}M", v / 1e6),
        a if a >= 100.0 || v == v.round() => format!("{v:.0}"),
        a if a >= 1.0 => format!("{v:.1}"),
        _ => format!("{v:.3}"),
    }
}

impl Draw for Chart {
    fn draw<D: DrawingBackend>(&self, area: &DrawingArea<D, Shift>) -> Drawn
    where
        D::ErrorType: 'static,
    {
        let cells = area.split_evenly((self.plots.len().div_ceil(2), 2));
        for (plot, cell) in self.plots.iter().zip(&cells) {
            self.plot(cell, plot)?;
        }
        Ok(())
    }
}
