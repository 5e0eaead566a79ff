//! Charts as SVG: lines over block sizes or seconds, and bars.
//!
//! A [`Chart`] has numbers and names; the page's style sheet has the colours of both schemes, by class. Text is drawn
//! at its own size in a small view box, so that it stays readable on a narrow screen.
//!
//! [`super::figures`] turns a result into charts.

use std::fmt::Write as _;

use super::escape;

/// Width of every view box, in CSS pixels at the intended text size.
const WIDTH: f64 = 380.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 24.0;
/// Height of one bar, including its gap.
const BAR: f64 = 17.0;

/// A value at a horizontal position, with its range.
pub(super) struct Dot {
    /// Index of the category, or seconds.
    pub x: f64,
    pub min: f64,
    pub value: f64,
    pub max: f64,
    /// Drawn hollow: read with care.
    pub hollow: bool,
    /// The tooltip, which screen readers read too.
    pub title: String,
}

/// A line or a set of bars.
pub(super) struct Series {
    /// Its class in the style sheet: "tcp", "iwarp", ...
    pub class: &'static str,
    pub name: String,
    pub dots: Vec<Dot>,
}

/// A horizontal line at a value that was not measured here.
pub(super) struct Rule {
    pub value: f64,
    pub label: String,
    /// "published" or "one".
    pub class: &'static str,
    /// In bar charts, the category to which it belongs; otherwise it spans all.
    pub category: Option<usize>,
}

/// The horizontal axis.
pub(super) enum Across {
    /// Names at equal distances.
    Categories(Vec<String>),
    /// Seconds, up to this.
    Seconds(f64),
}

/// A chart.
pub(super) struct Chart {
    pub title: String,
    pub description: String,
    pub across: Across,
    pub series: Vec<Series>,
    pub rules: Vec<Rule>,
    /// Logarithmic; otherwise from 0.
    pub log: bool,
    pub height: f64,
    /// Formats a value at the axis.
    pub tick: fn(f64) -> String,
}

/// A vertical scale of values.
struct Scale {
    log: bool,
    low: f64,
    high: f64,
    bottom: f64,
    height: f64,
}

impl Scale {
    fn of(chart: &Chart) -> Scale {
        let drawn = || {
            let dots = chart.series.iter().flat_map(|s| &s.dots).flat_map(|d| [d.min, d.value, d.max]);
            dots.chain(chart.rules.iter().map(|rule| rule.value)).filter(|v| v.is_finite())
        };
        let most = drawn().fold(0.0, f64::max);
        let least = drawn().filter(|v| *v > 0.0).fold(f64::INFINITY, f64::min);
        let (low, high) = match (chart.log, least.is_finite()) {
            (true, true) => (least / 1.25, most * 1.25),
            (true, false) => (1.0, 10.0),
            (false, _) => (0.0, if most > 0.0 { most * 1.08 } else { 1.0 }),
        };
        Scale {
            log: chart.log,
            low,
            high,
            bottom: chart.height - BOTTOM,
            height: chart.height - TOP - BOTTOM,
        }
    }

    fn y(&self, value: f64) -> f64 {
        let part = if self.log {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            value / self.high
        };
        self.bottom - part.clamp(0.0, 1.0) * self.height
    }

    /// Round values between the ends, about one every 40 pixels.
    fn ticks(&self) -> Vec<f64> {
        let wanted = (self.height / 40.0).max(2.0);
        if !self.log {
            let rough = self.high / wanted;
            let decade = 10f64.powf(rough.log10().floor());
            let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|n| n * decade).into_iter().find(|s| *s >= rough);
            let step = step.unwrap_or(10.0 * decade);
            return (0..).map(|i| f64::from(i) * step).take_while(|v| *v <= self.high).collect();
        }
        let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        let with = |digits: &[f64]| -> Vec<f64> {
            let all = decades.clone().flat_map(|d| digits.iter().map(move |n| n * 10f64.powi(d)));
            all.filter(|v| (self.low..=self.high).contains(v)).collect()
        };
        let choices: [&[f64]; 3] = [&[1.0], &[1.0, 3.0], &[1.0, 2.0, 5.0]];
        let fits = |ticks: &Vec<f64>| ticks.len() as f64 <= wanted + 1.0;
        let all: Vec<Vec<f64>> = choices.into_iter().map(with).collect();
        all.iter().rev().find(|t| fits(t)).or(all.first()).cloned().unwrap_or_default()
    }
}

/// The chart as lines with markers and whiskers.
pub(super) fn lines(chart: &Chart) -> String {
    let scale = Scale::of(chart);
    let room = WIDTH - LEFT - RIGHT;
    let x = |at: f64| match &chart.across {
        Across::Categories(names) => LEFT + (at + 0.5) * room / names.len().max(1) as f64,
        Across::Seconds(most) => LEFT + at / most.max(1e-9) * room,
    };
    let mut svg = open(chart, chart.height);
    grid(&mut svg, chart, &scale);
    // Writing to a String cannot fail.
    match &chart.across {
        Across::Categories(names) => {
            // Names that would overlap are omitted, every second or third; the last one stays.
            let longest = names.iter().map(String::len).max().unwrap_or(1) as f64;
            let every = ((longest * 6.4 + 4.0) * names.len() as f64 / room).ceil().max(1.0) as usize;
            for (i, name) in names.iter().enumerate().filter(|(i, _)| (names.len() - 1 - i) % every == 0) {
                let _ = write!(
                    svg,
                    "<text class=tick x={:.1} y={:.1} text-anchor=middle>{}</text>",
                    x(i as f64),
                    chart.height - 8.0,
                    escape(name)
                );
            }
        }
        Across::Seconds(most) => {
            let across = Scale { log: false, low: 0.0, high: *most, bottom: 0.0, height: room / 1.5 };
            for at in across.ticks() {
                let _ = write!(
                    svg,
                    "<text class=tick x={:.1} y={:.1} text-anchor=middle>{at:.0} s</text>",
                    x(at),
                    chart.height - 8.0
                );
            }
        }
    }
    rules(&mut svg, chart, &scale);
    for series in &chart.series {
        let _ = write!(svg, "<g class='series {}' data-series=\"{}\">", series.class, escape(&series.name));
        let path: Vec<String> =
            series.dots.iter().map(|d| format!("{:.1},{:.1}", x(d.x), scale.y(d.value))).collect();
        if path.len() > 1 {
            let _ = write!(svg, "<polyline class=line points='{}'/>", path.join(" "));
        }
        for dot in &series.dots {
            let (px, low, high) = (x(dot.x), scale.y(dot.min), scale.y(dot.max));
            if low - high > 1.0 {
                let _ = write!(
                    svg,
                    "<path class=whisker d='M{px:.1} {low:.1}V{high:.1}M{:.1} {low:.1}h6M{:.1} {high:.1}h6'/>",
                    px - 3.0,
                    px - 3.0
                );
            }
            let class = if dot.hollow { "dot hollow" } else { "dot" };
            let title = escape(&dot.title);
            let y = scale.y(dot.value);
            let _ = write!(
                svg,
                "<path class='{class}' d='{}'><title>{title}</title></path>",
                marker(series.class, px, y)
            );
        }
        svg.push_str("</g>");
    }
    svg.push_str("</svg>");
    svg
}

/// The chart as bars: a group per category, a bar per series.
pub(super) fn bars(chart: &Chart) -> String {
    let Across::Categories(names) = &chart.across else { return lines(chart) };
    let most = chart.series.iter().flat_map(|s| &s.dots).map(|d| d.max.max(d.value)).fold(0.0, f64::max);
    let most = chart.rules.iter().map(|rule| rule.value).fold(most, f64::max).max(f64::MIN_POSITIVE);
    // The value is written after the longest bar.
    let room = WIDTH - 84.0;
    let wide = |value: f64| (value / most * room).max(0.5);
    let groups: Vec<(usize, Vec<(&Series, &Dot)>)> = (0..names.len())
        .map(|i| {
            let of = |s: &'_ Series| s.dots.iter().position(|d| d.x as usize == i);
            (i, chart.series.iter().filter_map(|s| of(s).map(|at| (s, &s.dots[at]))).collect())
        })
        .collect();
    let height: f64 = groups.iter().map(|(_, bars)| 20.0 + BAR * bars.len() as f64).sum::<f64>() + 4.0;
    let height = height + 14.0 * chart.rules.len() as f64;
    let mut svg = open(chart, height);
    let mut y = 0.0;
    for (i, bars) in &groups {
        let top = y + 4.0;
        y += 14.0;
        let _ = write!(svg, "<text class=group x=0 y={y:.1}>{}</text>", escape(&names[*i]));
        y += 6.0;
        for (series, dot) in bars {
            let (class, name) = (series.class, escape(&series.name));
            let hollow = if dot.hollow { " hollow" } else { "" };
            let _ = write!(
                svg,
                "<g class='series {class}' data-series=\"{name}\"><rect class='bar{hollow}' x=0 y={y:.1} width={:.1} height={:.1} rx=2>\
                 <title>{}</title></rect>",
                wide(dot.value),
                BAR - 5.0,
                escape(&dot.title)
            );
            let middle = y + (BAR - 5.0) / 2.0;
            if wide(dot.max) - wide(dot.min) > 1.0 {
                let _ = write!(
                    svg,
                    "<path class=whisker d='M{:.1} {middle:.1}H{:.1}'/>",
                    wide(dot.min),
                    wide(dot.max)
                );
            }
            let _ = write!(
                svg,
                "</g><text class=value x={:.1} y={:.1}>{}</text>",
                wide(dot.max.max(dot.value)) + 6.0,
                middle + 4.0,
                escape(&(chart.tick)(dot.value))
            );
            y += BAR;
        }
        // Rules without a category follow the last one.
        let here = |rule: &&Rule| rule.category.unwrap_or(names.len().saturating_sub(1)) == *i;
        for rule in chart.rules.iter().filter(here) {
            y += 14.0;
            let x = wide(rule.value);
            let top = if rule.category.is_some() { top } else { 0.0 };
            // Keeps the label inside: about 5.6 pixels per letter.
            let long = 5.6 * rule.label.chars().count() as f64;
            let left = x + 4.0 + long <= WIDTH;
            let _ = write!(
                svg,
                "<path class='rule {}' d='M{x:.1} {top:.1}V{:.1}'/><text class='rule-label {}' x={:.1} y={:.1} text-anchor={}>{}</text>",
                rule.class,
                y - 4.0,
                rule.class,
                if left { x + 4.0 } else { (x - 4.0).max(long.min(WIDTH)) },
                y - 4.0,
                if left { "start" } else { "end" },
                escape(&rule.label)
            );
        }
    }
    svg.push_str("</svg>");
    svg
}

fn open(chart: &Chart, height: f64) -> String {
    format!(
        "<svg viewBox='0 0 {WIDTH} {height:.0}' role=img aria-label=\"{}\"><desc>{}</desc>",
        escape(&chart.title),
        escape(&chart.description)
    )
}

fn grid(svg: &mut String, chart: &Chart, scale: &Scale) {
    for value in scale.ticks() {
        let y = scale.y(value);
        let _ = write!(
            svg,
            "<path class=grid d='M{LEFT} {y:.1}H{}'/><text class=tick x={} y={:.1} text-anchor=end>{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            y + 3.5,
            escape(&(chart.tick)(value))
        );
    }
    let _ = write!(svg, "<path class=axis d='M{LEFT} {:.1}H{}'/>", scale.bottom, WIDTH - RIGHT);
}

fn rules(svg: &mut String, chart: &Chart, scale: &Scale) {
    for rule in &chart.rules {
        let y = scale.y(rule.value);
        // Above the line, or below it if there is no space above.
        let text = if y > TOP + 12.0 { y - 4.0 } else { y + 12.0 };
        let _ = write!(
            svg,
            "<path class='rule {}' d='M{LEFT} {y:.1}H{}'/><text class='rule-label {}' x={} y={text:.1} text-anchor=end>{}</text>",
            rule.class,
            WIDTH - RIGHT,
            rule.class,
            WIDTH - RIGHT,
            escape(&rule.label)
        );
    }
}

/// The marker of a series: each has its own shape, so that lines can be told apart without colour.
fn marker(class: &str, x: f64, y: f64) -> String {
    match class {
        "tcp" => format!("M{:.1} {:.1}h7v7h-7z", x - 3.5, y - 3.5),
        "iwarp" => format!("M{x:.1} {:.1}l4.4 7.6h-8.8z", y - 4.8),
        "nocrc" => format!("M{x:.1} {:.1}l4.4 -7.6h-8.8z", y + 4.8),
        "rnic" => format!("M{x:.1} {:.1}l4.8 4.8l-4.8 4.8l-4.8 -4.8z", y - 4.8),
        _ => format!("M{:.1} {y:.1}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", x - 4.0),
    }
}

/// A marker for the legend.
pub(super) fn key(class: &str) -> String {
    format!(
        "<svg class='key series {class}' viewBox='0 0 22 12' aria-hidden=true><path class=line d='M0 6h22'/>\
         <path class=dot d='{}'/></svg>",
        marker(class, 11.0, 6.0)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(values: &[f64], log: bool) -> Chart {
        let dots = values.iter().enumerate().map(|(i, v)| Dot {
            x: i as f64,
            min: v * 0.9,
            value: *v,
            max: v * 1.1,
            hollow: i == 0,
            title: format!("<{v}>"),
        });
        Chart {
            title: "a & b".into(),
            description: String::new(),
            across: Across::Categories((0..values.len()).map(|i| format!("{i} K")).collect()),
            series: vec![Series { class: "tcp", name: "TCP".into(), dots: dots.collect() }],
            rules: vec![Rule { value: 1.0, label: "one".into(), class: "one", category: None }],
            log,
            height: 200.0,
            tick: |v| format!("{v}"),
        }
    }

    #[test]
    fn every_dot_is_inside_and_says_what_it_is() {
        for log in [false, true] {
            let svg = lines(&chart(&[1.0, 10.0, 5000.0], log));
            assert_eq!(svg.matches("<title>").count(), 3);
            assert_eq!(svg.matches("dot hollow").count(), 1);
            assert!(svg.contains("a &amp; b") && svg.contains("&lt;5000&gt;"), "{svg}");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn ticks_are_round_and_few() {
        let scale = |low, high, log| Scale { log, low, high, bottom: 0.0, height: 160.0 };
        assert_eq!(scale(0.0, 9.3, false).ticks(), [0.0, 2.5, 5.0, 7.5]);
        assert_eq!(scale(0.0, 4.7e9, false).ticks(), [0.0, 2e9, 4e9]);
        assert_eq!(scale(4.0, 30.0, true).ticks(), [5.0, 10.0, 20.0]);
        assert_eq!(scale(0.5, 200_000.0, true).ticks(), [1.0, 10.0, 100.0, 1000.0, 10_000.0, 100_000.0]);
    }

    #[test]
    fn nothing_measured_and_zero_can_be_drawn() {
        for values in [&[][..], &[0.0], &[f64::MIN_POSITIVE]] {
            for log in [false, true] {
                for svg in [lines(&chart(values, log)), bars(&chart(values, log))] {
                    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
                }
            }
        }
    }
}
