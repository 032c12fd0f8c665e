//! The picture of `bench`.

use std::collections::BTreeMap;

use crate::base::record::{BenchRecord, Phases, Status};
use crate::base::units;

use super::*;

/// Heights of a panel and of a strip of phases.
const PANEL: u32 = 380;
const STRIP: u32 = 230;
const WIDTH: u32 = 1000;
/// Height above the strips of phases.
const HEAD: u32 = 54;

/// Most strips of phases; more would be no picture.
const STRIPS: usize = 8;

/// The parts of a call that follow each other. A kernel that runs while its launch returns is counted once.
const PHASES: [&str; 5] = ["alloc", "h2d", "launch and wait", "kernel", "d2h"];

/// Seconds of each part, if any was measured.
fn parts(p: &Phases) -> Option<[f64; 5]> {
    let kernel = p.kernel?;
    let overhead = p.sync.unwrap_or(0.0) + (p.launch.unwrap_or(0.0) - kernel).max(0.0);
    let all = [p.alloc.unwrap_or(0.0), p.h2d.unwrap_or(0.0), overhead, kernel, p.d2h.unwrap_or(0.0)];
    (all.iter().all(|v| v.is_finite() && *v >= 0.0) && all.iter().sum::<f64>() > 0.0).then_some(all)
}

/// The phases of a series' sizes.
struct Strip {
    name: String,
    /// Size and seconds of each part.
    bars: Vec<(f64, [f64; 5])>,
}

/// Series whose sizes are in one unit.
struct Group {
    unit: String,
    times: Vec<Line>,
    speedups: Vec<Line>,
    crossings: Vec<Crossing>,
    span: (f64, f64),
}

pub(super) struct Chart {
    groups: Vec<Group>,
    strips: Vec<Strip>,
    /// Series whose phases found no place.
    left_out: usize,
}

/// Size in the unit of `--sizes`: elements, or the cube root of m·n·k.
fn size(r: &BenchRecord) -> Option<f64> {
    let work = r.subject.work as f64;
    let size = if r.subject.work_unit == "dim" { work.cbrt() } else { work };
    (size > 0.0 && r.subject.status == Status::Ok).then_some(size)
}

fn name(r: &BenchRecord) -> String {
    let s = &r.subject;
    let attrs: Vec<String> = s.attrs.iter().map(|(n, v)| format!("{n}={v}")).collect();
    let name = format!("{} {} {} {} {} {}", s.op, s.dtype, attrs.join(","), s.device, s.variant, r.residency);
    name.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Where a speed-up passes 1 for good, if it passes once: between the last size that surely loses and the first that surely
/// wins, at the place where the line does.
fn crossing(line: &Line) -> Option<Crossing> {
    let above: Vec<bool> = line.points.iter().map(|p| p.1 > 1.0).collect();
    let changes = above.windows(2).filter(|w| w[0] != w[1]).count();
    let i = above.windows(2).position(|w| !w[0] && w[1]).filter(|_| changes == 1)?;
    let (a, b) = (line.points[i], line.points[i + 1]);
    let part = -a.1.ln() / (b.1.ln() - a.1.ln());
    let at = (a.0.ln() + part * (b.0.ln() - a.0.ln())).exp();
    let low = line.points[..=i].iter().rev().find(|p| p.2[1] < 1.0)?.0;
    let high = line.points[i + 1..].iter().find(|p| p.2[0] > 1.0)?.0;
    Some(Crossing { at, ci: [low, high], color: line.color })
}

/// A group of one unit, and the phases of its series. Colours go on from series `first`.
fn group(unit: &str, series: BTreeMap<String, Vec<(f64, &BenchRecord)>>, first: usize) -> (Group, Vec<Strip>) {
    let mut g =
        Group { unit: unit.into(), times: vec![], speedups: vec![], crossings: vec![], span: (f64::INFINITY, 0.0) };
    let mut strips = Vec::new();
    for (i, (name, mut rows)) in series.into_iter().enumerate() {
        rows.sort_by(|a, b| a.0.total_cmp(&b.0));
        let color = COLORS[(first + i) % COLORS.len()];
        let line = |points| Line { name: name.clone(), color, points };
        let time = |(x, r): &(f64, &BenchRecord)| Some((*x, r.median_s?, r.ci_s?));
        let speedup = |(x, r): &(f64, &BenchRecord)| Some((*x, r.speedup_vs_cpu?, r.speedup_ci?));
        g.span = rows.iter().fold(g.span, |(a, b), (x, _)| (a.min(*x), b.max(*x)));
        let faster: Vec<Point> = rows.iter().filter_map(speedup).collect();
        if !faster.is_empty() {
            g.speedups.push(line(faster));
        }
        let bars: Vec<_> = rows.iter().filter_map(|(x, r)| Some((*x, parts(&r.phases_s)?))).collect();
        if !bars.is_empty() {
            strips.push(Strip { name: name.clone(), bars });
        }
        g.times.push(line(rows.iter().filter_map(time).collect()));
    }
    g.crossings = g.speedups.iter().filter_map(crossing).collect();
    (g, strips)
}

impl Group {
    fn head(&self) -> u32 {
        16 + ROW as u32 * self.times.len().div_ceil(2) as u32
    }

    fn height(&self) -> u32 {
        self.head() + PANEL * (1 + u32::from(!self.speedups.is_empty()))
    }

    fn draw<D: DrawingBackend>(&self, area: &DrawingArea<D, Shift>) -> Drawn
    where
        D::ErrorType: 'static,
    {
        let (head, rest) = area.split_vertically(self.head());
        let names: Vec<(String, RGBColor)> = self.times.iter().map(|l| (l.name.clone(), l.color)).collect();
        legend(&head, &names, 2)?;
        let (top, rest) = rest.split_vertically(PANEL);
        let x = format!("size ({})", self.unit);
        Panel {
            title: "Time per call, 95 % intervals as bands",
            x: &x,
            y: "median time",
            lines: &self.times,
            crossings: &[],
            y_label: units::seconds,
            level: None,
            span: self.span,
        }
        .draw(&top)?;
        if self.speedups.is_empty() {
            return Ok(());
        }
        Panel {
            title: "Speed-up over the CPU; dashed: where it passes 1, between sizes that surely lose and win",
            x: &x,
            y: "CPU time / time",
            lines: &self.speedups,
            crossings: &self.crossings,
            y_label: factor_label,
            level: Some(1.0),
            span: self.span,
        }
        .draw(&rest)
    }
}

impl Chart {
    pub(super) fn of(records: &[Record]) -> Option<Self> {
        let mut found: BTreeMap<&str, BTreeMap<String, Vec<(f64, &BenchRecord)>>> = BTreeMap::new();
        for record in records {
            let Record::Bench(r) = record else { continue };
            if let (Some(size), Some(_), Some(_)) = (size(r), r.median_s.filter(|m| *m > 0.0), r.ci_s) {
                found.entry(&r.subject.work_unit).or_default().entry(name(r)).or_default().push((size, r));
            }
        }
        if found.is_empty() {
            return None;
        }
        let (mut groups, mut strips, mut first) = (Vec::new(), Vec::new(), 0);
        for (unit, series) in found {
            let count = series.len();
            let (g, more) = group(unit, series, first);
            first += count;
            groups.push(g);
            strips.extend(more);
        }
        let left_out = strips.len().saturating_sub(STRIPS);
        strips.truncate(STRIPS);
        Some(Chart { groups, strips, left_out })
    }

    pub(super) fn size(&self) -> (u32, u32) {
        let phases = match self.strips.len() as u32 {
            0 => 0,
            n => HEAD + STRIP * n.div_ceil(2),
        };
        (WIDTH, self.groups.iter().map(Group::height).sum::<u32>() + phases)
    }

    fn strip<D: DrawingBackend>(&self, area: &DrawingArea<D, Shift>, strip: &Strip) -> Drawn
    where
        D::ErrorType: 'static,
    {
        let n = strip.bars.len();
        let mut chart = ChartBuilder::on(area)
            .margin_right(14)
            .margin_left(6)
            .caption(clipped(&strip.name, 470), label(13))
            .x_label_area_size(40)
            .y_label_area_size(50)
            .build_cartesian_2d(0f64..n as f64, 0f64..108f64)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .y_labels(6)
            .max_light_lines(0)
            .bold_line_style(BLACK.mix(0.12))
            .axis_style(GREY)
            .y_label_formatter(&|v| format!("{v:.0} %"))
            .label_style(label(11))
            .draw()?;
        // As many labels as fit side by side.
        let every = (n * 46).div_ceil(400).max(1);
        for (i, (size, phases)) in strip.bars.iter().enumerate() {
            let total: f64 = phases.iter().sum();
            let mut from = 0.0;
            for (seconds, color) in phases.iter().zip(COLORS) {
                let to = from + 100.0 * seconds / total;
                let corners = [(i as f64 + 0.1, from), (i as f64 + 0.9, to)];
                chart.draw_series([Rectangle::new(corners, color.mix(0.85).filled())])?;
                from = to;
            }
            if i % every == 0 {
                let middle = i as f64 + 0.5;
                let time = units::seconds(total);
                chart.draw_series([Text::new(time, (middle, 104.0), centred(10))])?;
                let (x, y) = chart.backend_coord(&(middle, 0.0));
                let (left, top) = area.get_base_pixel();
                area.draw(&Text::new(size_label(*size), (x - left, y - top + 12), centred(11)))?;
            }
        }
        Ok(())
    }
}

impl Draw for Chart {
    fn draw<D: DrawingBackend>(&self, area: &DrawingArea<D, Shift>) -> Drawn
    where
        D::ErrorType: 'static,
    {
        let mut rest = area.clone();
        for group in &self.groups {
            let (mine, below) = rest.split_vertically(group.height());
            group.draw(&mine)?;
            rest = below;
        }
        if self.strips.is_empty() {
            return Ok(());
        }
        let (names, grid) = rest.split_vertically(HEAD);
        let phases: Vec<(String, RGBColor)> = PHASES.iter().map(|p| p.to_string()).zip(COLORS).collect();
        legend(&names, &phases, PHASES.len())?;
        let title = match self.left_out {
            0 => "Phases of a call with operands in host memory, as shares; its whole time above each".to_string(),
            n => {
                format!("Phases of a call with operands in host memory, as shares; {n} more series have no place here")
            }
        };
        names.draw(&Text::new(title, (14, 30), label(13)))?;
        let rows = self.strips.len().div_ceil(2);
        for (strip, cell) in self.strips.iter().zip(grid.split_evenly((rows, 2))) {
            self.strip(&cell, strip)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(points: &[(f64, f64)]) -> Line {
        let points = points.iter().map(|(x, v)| (*x, *v, [v / 1.05, v * 1.05])).collect();
        Line { name: "a".into(), color: COLORS[0], points }
    }

    #[test]
    fn parts_of_a_call_count_nothing_twice() {
        // A processor's launch returns when its kernel has ended.
        let cpu = Phases { launch: Some(5.0), kernel: Some(5.0), sync: Some(0.5), ..Phases::default() };
        assert_eq!(parts(&cpu), Some([0.0, 0.0, 0.5, 5.0, 0.0]));
        let gpu = Phases { h2d: Some(2.0), launch: Some(3.0), kernel: Some(1.0), sync: Some(1.0), ..Phases::default() };
        assert_eq!(parts(&gpu), Some([0.0, 2.0, 3.0, 1.0, 0.0]));
        assert_eq!(parts(&Phases::default()), None);
    }

    #[test]
    fn a_crossing_lies_between_what_surely_loses_and_surely_wins() {
        let c = crossing(&line(&[(16.0, 0.25), (64.0, 0.99), (256.0, 4.0)])).unwrap();
        assert_eq!(c.ci, [16.0, 256.0], "0.99 is not sure");
        assert!(c.at > 64.0 && c.at < 70.0, "{c:?}");
        assert!(crossing(&line(&[(16.0, 2.0), (64.0, 3.0)])).is_none());
        assert!(crossing(&line(&[(16.0, 0.5), (64.0, 2.0), (256.0, 0.5)])).is_none(), "it passes twice");
        assert!(crossing(&line(&[(16.0, 0.5)])).is_none());
    }
}
