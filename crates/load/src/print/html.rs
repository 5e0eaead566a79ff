//! The result as one self-contained HTML page: figures as SVG, then the table, then the environment.
//!
//! Owns: nothing. Does not: load anything from elsewhere.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use plotters::prelude::*;

use super::cells;
use crate::result::{Point, Report};
use crate::workload::{Mix, size_label};

/// The figures could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("drawing a figure: {0}")]
pub struct DrawError(String);

/// A figure: one operation and queue depth, block size across, one line a transport.
struct Figure<'a> {
    title: String,
    unit: &'static str,
    value: fn(&Point) -> f64,
    log: bool,
    points: Vec<&'a Point>,
}

/// Colours that stay apart for most kinds of colour vision; TCP is always the grey one.
fn colour(transport: &str) -> RGBColor {
    match transport {
        "tcp" => RGBColor(110, 110, 110),
        "shm" => RGBColor(0, 114, 178),
        "iwarp" => RGBColor(213, 94, 0),
        "iwarp-nocrc" => RGBColor(230, 159, 0),
        _ => RGBColor(0, 158, 115),
    }
}

/// The page.
pub fn render(report: &Report) -> Result<String, DrawError> {
    let mut page = String::from(HEAD);
    let title = escape(&report.title);
    // Writing to a String cannot fail.
    let _ = write!(page, "<title>{title}</title></head><body><h1>{title}</h1>");
    let _ = write!(page, "<p>{}</p>", escape(LEAD));
    verdicts(&mut page, report);
    page.push_str("<div class=figures>");
    for figure in figures(report) {
        let _ = write!(
            page,
            "<figure>{}<figcaption>{}</figcaption></figure>",
            draw(&figure)?,
            escape(&figure.title)
        );
    }
    page.push_str("</div>");
    table(&mut page, report);
    let env = &report.environment;
    page.push_str("<h2>Environment</h2><ul>");
    for line in [
        format!("{} x {} processors, nominal clock {:.2} GHz", env.processor, env.processors, env.hz / 1e9),
        format!(
            "Linux {}, reactor on {}, TCP congestion control {}",
            env.kernel, env.driver, env.congestion_control
        ),
        format!("Weft {}, started as: {}", env.version, env.command),
    ]
    .iter()
    .chain(&report.notes)
    {
        let _ = write!(page, "<li>{}</li>", escape(line));
    }
    page.push_str("</ul></body></html>\n");
    Ok(page)
}

const LEAD: &str = "The same work over TCP and over RDMA, interleaved in one run. Points are medians of the \
repetitions; the table shows how far these lie apart (\u{b1}: half the range). Cycles per byte are the CPU time of both ends \
times the nominal clock, divided by the payload.";

const HEAD: &str = "<!doctype html><html lang=en><head><meta charset=utf-8>\
<meta name=viewport content='width=device-width'><style>\
:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem}\
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(26rem,1fr));gap:1rem}\
figure{margin:0;background:#fff;border-radius:6px;padding:.5rem}figcaption{color:#333;text-align:center}\
svg{width:100%;height:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}\
td,th{padding:.2rem .5rem;text-align:right;border-bottom:1px solid #8884}td:nth-child(-n+2),th:nth-child(-n+2){text-align:left}\
.holds{color:#0a7d3c}.short{color:#c22;font-weight:600}</style>";

fn verdicts(page: &mut String, report: &Report) {
    if report.verdicts.is_empty() {
        return;
    }
    page.push_str("<ul>");
    for verdict in &report.verdicts {
        let (class, word) = if verdict.holds { ("holds", "holds") } else { ("short", "falls short") };
        let seen = verdict.ratio.map_or("not measured".to_owned(), |r| format!("{r:.3}"));
        let _ = write!(page, "<li class={class}>{}: {seen}, {word}</li>", escape(&verdict.claim));
    }
    page.push_str("</ul>");
}

fn figures(report: &Report) -> Vec<Figure<'_>> {
    let mut groups: BTreeMap<(&str, Mix, u32), Vec<&Point>> = BTreeMap::new();
    for point in &report.points {
        let key = (point.work.protocol.as_str(), point.work.mix, point.work.queue_depth);
        groups.entry(key).or_default().push(point);
    }
    let mut figures = Vec::new();
    for ((protocol, mix, depth), points) in groups {
        let mut add = |what: &str, unit, value, log| {
            let title = format!("{protocol} {mix}, queue depth {depth}: {what}");
            figures.push(Figure { title, unit, value, log, points: points.clone() });
        };
        if depth == 1 {
            add("mean latency", "us", |p| p.mean.median / 1e3, true);
        } else {
            add("throughput", "MB/s", |p| p.throughput.median / 1e6, false);
            add("cycles per byte, both ends", "cycles/byte", |p| p.cycles_per_byte.median, true);
        }
    }
    figures
}

fn draw(figure: &Figure<'_>) -> Result<String, DrawError> {
    let fail = |e: &dyn std::fmt::Display| DrawError(e.to_string());
    let mut sizes: Vec<u32> = figure.points.iter().map(|p| p.work.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let values = figure.points.iter().map(|p| (figure.value)(p));
    let high = values.clone().fold(0.0f64, f64::max) * 1.15;
    let low = if figure.log { values.fold(f64::MAX, f64::min) * 0.8 } else { 0.0 };
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (640, 360)).into_drawing_area();
        root.fill(&WHITE).map_err(|e| fail(&e))?;
        let across = -0.3..sizes.len() as f64 - 0.7;
        let mut lines: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for point in &figure.points {
            if let Some(x) = sizes.iter().position(|s| *s == point.work.size) {
                lines.entry(&point.transport).or_default().push((x as f64, (figure.value)(point)));
            }
        }
        let mut builder = ChartBuilder::on(&root);
        builder.margin(12).x_label_area_size(34).y_label_area_size(64);
        let label = |x: &f64| match sizes.get(x.round() as usize) {
            Some(size) if (x - x.round()).abs() < 0.01 => size_label(u64::from(*size)),
            _ => String::new(),
        };
        // The two scales have different types, the drawing is the same.
        macro_rules! plot {
            ($up:expr) => {{
                let mut chart = builder.build_cartesian_2d(across, $up).map_err(|e| fail(&e))?;
                chart
                    .configure_mesh()
                    .x_labels(sizes.len() * 2 + 1)
                    .x_label_formatter(&label)
                    .y_desc(figure.unit)
                    .light_line_style(TRANSPARENT)
                    .draw()
                    .map_err(|e| fail(&e))?;
                for (transport, line) in &mut lines {
                    line.sort_by(|a, b| a.0.total_cmp(&b.0));
                    let style = colour(transport).stroke_width(3);
                    chart
                        .draw_series(LineSeries::new(line.iter().copied(), style).point_size(4))
                        .map_err(|e| fail(&e))?
                        .label(*transport)
                        .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
                }
                chart
                    .configure_series_labels()
                    .position(SeriesLabelPosition::UpperLeft)
                    .background_style(WHITE.mix(0.8))
                    .border_style(TRANSPARENT)
                    .draw()
                    .map_err(|e| fail(&e))?;
            }};
        }
        if figure.log {
            plot!((low.max(1e-6)..high.max(1e-5)).log_scale());
        } else {
            plot!(0.0..high.max(1e-6));
        }
        root.present().map_err(|e| fail(&e))?;
    }
    Ok(svg)
}

fn table(page: &mut String, report: &Report) {
    page.push_str(
        "<h2>All points</h2><table><tr><th>work<th>transport<th>throughput<th>&plusmn;<th>IOPS<th>mean<th>&times; tcp\
         <th>p50<th>p99<th>p99.9<th>max<th>cycles/B<th>&times; tcp</tr>",
    );
    for (work, points) in report.by_work() {
        for point in &points {
            let _ = write!(page, "<tr><td>{}", escape(&work.to_string()));
            for cell in cells(&points, point) {
                let _ = write!(page, "<td>{}", escape(&cell));
            }
            page.push_str("</tr>");
        }
    }
    page.push_str("</table>");
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
