//! A chart as a picture: bars that lie, a block of them for each group, panels in two columns.
//!
//! The same chart gives the same bytes. Colours are those of Okabe and Ito, which people who see
//! fewer colours tell apart, and there is a set for dark pages.

use std::fmt::Write as _;

use super::chart::{Chart, Panel, Scale, Value};

const WIDTH: f64 = 760.0;
const MARGIN: f64 = 12.0;
const TITLE_HEIGHT: f64 = 26.0;
const LEGEND_HEIGHT: f64 = 24.0;
const PANEL_TITLE_HEIGHT: f64 = 20.0;
const AXIS_HEIGHT: f64 = 20.0;
const BAR_HEIGHT: f64 = 9.0;
const GROUP_GAP: f64 = 8.0;
const PANEL_GAP: f64 = 24.0;
/// Where the number of a bar that ends at the edge stands.
const NUMBER_WIDTH: f64 = 34.0;
/// Of a letter, about: the reader's font decides.
const LETTER_WIDTH: f64 = 6.1;

const STYLE: &str = "\
text{font:11px system-ui,sans-serif;fill:#24292f}\
.title{font-size:14px;font-weight:600}.panel{font-weight:600}.number,.tick{font-size:9px;fill:#57606a}\
.grid{stroke:#d8dee4}.base{stroke:#57606a}.spread{stroke:#24292f}\
.s0{fill:#0072b2}.s1{fill:#e69f00}.s2{fill:#999999}.s3{fill:#009e73}.s4{fill:#cc79a7}.s5{fill:#56b4e9}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.number,.tick{fill:#9198a1}\
.grid{stroke:#3d444d}.base{stroke:#9198a1}.spread{stroke:#e6edf3}.s0{fill:#4ba3d9}}";

/// Numbers to places.
struct Axis {
    scale: Scale,
    from: f64,
    to: f64,
    ticks: Vec<f64>,
}

impl Axis {
    fn of(chart: &Chart) -> Self {
        let least = chart.numbers().fold(f64::INFINITY, f64::min);
        let most = chart.numbers().fold(f64::NEG_INFINITY, f64::max);
        match chart.scale {
            Scale::Times => {
                // Doublings, and what is half way between them.
                let marks =
                    (-20..=20).flat_map(|n| [1.0, 1.5].map(|half| f64::from(n).exp2() * half));
                let before = |mark: &f64| *mark <= least.min(1.0);
                let from = marks.clone().take_while(before).last();
                let to = marks.clone().find(|&mark| mark >= most.max(1.5));
                let (from, to) = (from.unwrap_or(least), to.unwrap_or(most));
                let has_room = to / from <= 8.0;
                let is_drawn = |mark: &f64| {
                    let is_doubling = mark.log2().fract() == 0.0;
                    (from..=to).contains(mark) && (is_doubling || has_room)
                };
                Self {
                    scale: chart.scale,
                    from: from.log2(),
                    to: to.log2(),
                    ticks: marks.filter(is_drawn).collect(),
                }
            }
            Scale::Plain => {
                let step = step(most);
                let count = (most / step).ceil().max(1.0);
                Self {
                    scale: chart.scale,
                    from: 0.0,
                    to: count * step,
                    ticks: (0..=count as u32).map(|n| f64::from(n) * step).collect(),
                }
            }
        }
    }

    /// From 0 at the left to 1.
    fn place(&self, number: f64) -> f64 {
        let at = match self.scale {
            Scale::Times => number.log2(),
            Scale::Plain => number,
        };
        (at - self.from) / (self.to - self.from)
    }

    /// Where bars begin.
    fn base(&self) -> f64 {
        match self.scale {
            Scale::Times => self.place(1.0),
            Scale::Plain => 0.0,
        }
    }
}

/// 1, 2 or 5 of some power of ten, so that there are at most eight.
fn step(most: f64) -> f64 {
    let mut power = 10_f64.powf((most.max(f64::MIN_POSITIVE) / 8.0).log10().floor());
    loop {
        for factor in [1.0, 2.0, 5.0] {
            if most <= 8.0 * factor * power {
                return factor * power;
            }
        }
        power *= 10.0;
    }
}

pub(super) fn draw(chart: &Chart) -> String {
    let axis = Axis::of(chart);
    let columns = chart.panels.len().min(2);
    let panel_width = (WIDTH - 2.0 * MARGIN - PANEL_GAP * (columns as f64 - 1.0)) / columns as f64;
    let heights = chart
        .panels
        .iter()
        .map(|panel| height_of(panel, chart.series.len()));
    let panel_height = heights.fold(0.0, f64::max);
    let head = MARGIN + TITLE_HEIGHT + LEGEND_HEIGHT;
    let lines = chart.panels.len().div_ceil(columns) as f64;
    let height = head + lines * (panel_height + GROUP_GAP) + MARGIN;

    let mut out = String::new();
    put(
        &mut out,
        format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\">"
        ),
    );
    let title = escaped(&chart.title);
    put(&mut out, format_args!("<title>{title}</title>"));
    put(&mut out, format_args!("<style>{STYLE}</style>"));
    let y = MARGIN + 13.0;
    put(
        &mut out,
        format_args!("<text class=\"title\" x=\"{MARGIN}\" y=\"{y}\">{title}</text>"),
    );
    let mut x = MARGIN;
    for (n, name) in chart.series.iter().enumerate() {
        let y = MARGIN + TITLE_HEIGHT;
        put(
            &mut out,
            format_args!(
                "<rect class=\"s{n}\" x=\"{x:.1}\" y=\"{y}\" width=\"10\" height=\"10\"/><text x=\"{:.1}\" y=\"{}\">{}</text>",
                x + 14.0,
                y + 9.0,
                escaped(name)
            ),
        );
        x += 30.0 + width_of(name);
    }
    for (n, panel) in chart.panels.iter().enumerate() {
        let left = MARGIN + (n % columns) as f64 * (panel_width + PANEL_GAP);
        let top = head + (n / columns) as f64 * (panel_height + GROUP_GAP);
        draw_panel(
            &mut out,
            panel,
            &axis,
            chart.series.len(),
            (left, top),
            panel_width,
        );
    }
    put(&mut out, format_args!("</svg>"));
    out
}

fn title_height_of(panel: &Panel) -> f64 {
    match panel.name.is_empty() {
        true => 0.0,
        false => PANEL_TITLE_HEIGHT,
    }
}

fn height_of(panel: &Panel, series: usize) -> f64 {
    let group_height = series as f64 * BAR_HEIGHT + GROUP_GAP;
    title_height_of(panel) + panel.groups.len() as f64 * group_height + AXIS_HEIGHT
}

fn draw_panel(
    out: &mut String,
    panel: &Panel,
    axis: &Axis,
    series: usize,
    (left, top): (f64, f64),
    width: f64,
) {
    let names = panel.groups.iter().map(|group| width_of(&group.name));
    let names = names.fold(0.0, f64::max) + 8.0;
    let (bars, wide) = (left + names, width - names - NUMBER_WIDTH);
    let group_height = series as f64 * BAR_HEIGHT + GROUP_GAP;
    let top_of_bars = top + title_height_of(panel);
    let bottom = top_of_bars + panel.groups.len() as f64 * group_height;
    put(
        out,
        format_args!(
            "<text class=\"panel\" x=\"{bars:.1}\" y=\"{:.1}\">{}</text>",
            top + 12.0,
            escaped(&panel.name)
        ),
    );
    let base = bars + axis.base() * wide;
    for &at in &axis.ticks {
        let x = bars + axis.place(at) * wide;
        let class = if (x - base).abs() < 0.01 {
            "base"
        } else {
            "grid"
        };
        put(
            out,
            format_args!(
                "<path class=\"{class}\" d=\"M{x:.1} {top_of_bars:.1}V{bottom:.1}\"/><text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 12.0,
                tick(at)
            ),
        );
    }
    for (n, group) in panel.groups.iter().enumerate() {
        let y = top_of_bars + n as f64 * group_height + GROUP_GAP / 2.0;
        let middle = y + series as f64 * BAR_HEIGHT / 2.0 + 4.0;
        put(
            out,
            format_args!(
                "<text x=\"{:.1}\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>",
                bars - 6.0,
                escaped(&group.name)
            ),
        );
        for (at, value) in group.values.iter().enumerate() {
            if let Some(value) = value {
                let y = y + at as f64 * BAR_HEIGHT;
                draw_bar(out, value, at, y, base, |n| bars + axis.place(n) * wide);
            }
        }
    }
}

fn draw_bar(
    out: &mut String,
    value: &Value,
    series: usize,
    y: f64,
    base: f64,
    place: impl Fn(f64) -> f64,
) {
    let x = place(value.middle);
    let bar = BAR_HEIGHT - 1.5;
    put(
        out,
        format_args!(
            "<rect class=\"s{series}\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{bar}\"/>",
            x.min(base),
            (x - base).abs().max(0.5)
        ),
    );
    if value.spread.is_some() {
        put(
            out,
            format_args!(
                "<path class=\"spread\" d=\"M{:.1} {:.1}H{:.1}\"/>",
                place(value.least()),
                y + bar / 2.0,
                place(value.most())
            ),
        );
    }
    put(
        out,
        format_args!(
            "<text class=\"number\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x.max(base).max(place(value.most())) + 3.0,
            y + bar,
            number(value.middle)
        ),
    );
}

/// Three digits, or all of what is before the point.
fn number(number: f64) -> String {
    let digits = match number.abs() {
        n if n >= 100.0 => 0,
        n if n >= 10.0 => 1,
        _ => 2,
    };
    format!("{number:.digits$}")
}

/// The same without zeros at the end.
fn tick(at: f64) -> String {
    let text = number(at);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

fn width_of(text: &str) -> f64 {
    text.chars().count() as f64 * LETTER_WIDTH
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn put(out: &mut String, line: std::fmt::Arguments<'_>) {
    out.write_fmt(line).expect("a string takes all");
    out.push('\n');
}
