//! Plots as SVG, drawn by `plotters`.
//!
//! ```text
//! +--------------------------------------+-----------+
//! | title                                |           |
//! | y  |                                 | # legend  |
//! |    |      lines or groups of bars    | # legend  |
//! |    +-----------------------------    |           |
//! |      categories or numbers           |           |
//! |                x                     |           |
//! +--------------------------------------+-----------+
//! ```
//!
//! Text, axes and grid take the colour of the page's text, so that one drawing fits light, dark and print.
//! Over each point and bar lies an invisible shape with a `<title>`, which browsers show as a tooltip.

use std::fmt::Write;

use extant_lab::report::{Form, Plot};
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::ReportFault;
use crate::numbers::escaped;
use crate::numbers::number;

const WIDTH: u32 = 960;
const LEGEND_PX: u32 = 220;
const AREA_PX: u32 = 340;
/// Lines of more points are drawn without dots.
const DOTS_MAX: usize = 60;
/// Stands for the colour of the page's text; replaced in the finished SVG.
const INK: RGBColor = RGBColor(1, 2, 3);
const INK_TEXT: &str = "#010203";
/// Distinguishable on white and on dark ground, also with colour blindness (after Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(148, 103, 189),
    RGBColor(140, 140, 140),
];

/// Draws a plot.
pub(crate) fn svg(plot: &Plot) -> Result<String, ReportFault> {
    let points = plot.series.iter().flat_map(|series| &series.points);
    let shown: Vec<(f64, f64)> = points
        .filter(|(x, y)| is_shown(*x, plot.x_log && plot.form == Form::Lines) && is_shown(*y, plot.y_log))
        .copied()
        .collect();
    let failed = |why: String| ReportFault::Plot { plot: plot.id.clone(), why };
    if shown.is_empty() {
        return Err(failed("no points".to_owned()));
    }
    let y = range(shown.iter().map(|point| point.1), plot.y_log, plot.form == Form::Bars || !plot.y_log);
    let x = match plot.form {
        Form::Bars => 0.0..plot.categories.len().max(1) as f64,
        Form::Lines => range(shown.iter().map(|point| point.0), plot.x_log, false),
    };
    let drawn = match (plot.form == Form::Lines && plot.x_log, plot.y_log) {
        (false, false) => draw::<RangedCoordf64, RangedCoordf64>(plot, x, y),
        (false, true) => draw(plot, x, y.log_scale()),
        (true, false) => draw(plot, x.log_scale(), y),
        (true, true) => draw(plot, x.log_scale(), y.log_scale()),
    };
    drawn.map_err(|why| failed(why.to_string()))
}

/// Whether an axis has a place for a value.
fn is_shown(value: f64, log: bool) -> bool {
    value.is_finite() && (!log || value > 0.0)
}

/// The range of an axis around these values.
fn range(values: impl Iterator<Item = f64> + Clone, log: bool, with_zero: bool) -> std::ops::Range<f64> {
    let low = values.clone().fold(f64::INFINITY, f64::min);
    let high = values.fold(f64::NEG_INFINITY, f64::max);
    if log {
        // Whole decades would leave much of the area empty.
        return low / 1.5..high * 1.5;
    }
    let (low, high) = if with_zero { (low.min(0.0), high.max(0.0)) } else { (low, high) };
    let margin = (high - low) * 0.06;
    let margin = if margin > 0.0 { margin } else { high.abs().max(1.0) * 0.1 };
    (if low == 0.0 { 0.0 } else { low - margin })..high + margin
}

/// Markup that is added to the drawing of `plotters`.
#[derive(Default)]
struct Overlay {
    markup: String,
}

impl Overlay {
    /// An invisible shape with a tooltip.
    fn hover(&mut self, shape: &str, text: &str) {
        let text = escaped(text);
        let _ = writeln!(self.markup, "<{shape} fill=\"transparent\"><title>{text}</title></{}>", tag(shape));
    }

    /// Text at an angle, which ends at a point: `plotters` turns text by quarters only.
    fn slanted(&mut self, (x, y): (i32, i32), text: &str) {
        let text = escaped(text);
        let _ = writeln!(
            self.markup,
            "<text x=\"{x}\" y=\"{y}\" transform=\"rotate(-30 {x} {y})\" text-anchor=\"end\" \
             font-family=\"sans-serif\" font-size=\"12\" fill=\"currentColor\">{text}</text>"
        );
    }
}

fn tag(shape: &str) -> &str {
    shape.split(' ').next().unwrap_or(shape)
}

type Chart<'a, 'b, X, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>;
type Drawn<T> = Result<T, Box<dyn std::error::Error>>;

fn font(size: i32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

fn draw<X, Y>(
    plot: &Plot,
    x: impl AsRangedCoord<CoordDescType = X, Value = f64>,
    y: impl AsRangedCoord<CoordDescType = Y, Value = f64>,
) -> Drawn<String>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let bars = plot.form == Form::Bars;
    let longest = plot.categories.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let slanted = bars && longest > 90 / plot.categories.len().max(1);
    let labels_px = if slanted { 40 + longest as u32 * 3 } else { 50 };
    let height = (AREA_PX + 50 + labels_px).max(60 + 22 * plot.series.len() as u32);
    let mut svg = String::new();
    let mut overlay = Overlay::default();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        let (area, legend) = root.split_horizontally(WIDTH - LEGEND_PX);
        let mut chart = ChartBuilder::on(&area)
            .caption(&plot.title, font(17))
            .margin(8)
            .set_label_area_size(LabelAreaPosition::Left, 84)
            .set_label_area_size(LabelAreaPosition::Bottom, labels_px)
            .build_cartesian_2d(x, y)?;
        let format = |value: &f64| number(*value);
        let mut mesh = chart.configure_mesh();
        mesh.axis_style(INK)
            .bold_line_style(INK.mix(0.18))
            .light_line_style(TRANSPARENT)
            .label_style(font(13))
            .axis_desc_style(font(14))
            .x_label_formatter(&format)
            .y_label_formatter(&format)
            .y_labels(8)
            .x_labels(if bars { 0 } else { 9 })
            .y_desc(&plot.y);
        match bars {
            true => mesh.disable_x_mesh(),
            false => mesh.x_desc(&plot.x),
        };
        mesh.draw()?;
        match bars {
            true => draw_bars(&mut chart, plot, &mut overlay)?,
            false => draw_lines(&mut chart, plot, &mut overlay)?,
        }
        if bars {
            let (across, down) = chart.plotting_area().get_pixel_range();
            for (index, name) in plot.categories.iter().enumerate() {
                let of_all = (index as f64 + 0.5) / plot.categories.len() as f64;
                let x = across.start + (f64::from(across.end - across.start) * of_all) as i32;
                match slanted {
                    true => overlay.slanted((x + 4, down.end + 14), name),
                    false => {
                        let style = font(13).pos(Pos::new(HPos::Center, VPos::Top));
                        root.draw(&Text::new(name.clone(), (x, down.end + 7), style))?;
                    }
                }
            }
            let style = font(14).pos(Pos::new(HPos::Center, VPos::Bottom));
            let middle = i32::midpoint(across.start, across.end);
            root.draw(&Text::new(plot.x.clone(), (middle, height as i32 - 6), style))?;
        }
        draw_legend(&legend, plot)?;
        root.present()?;
    }
    Ok(finished(&svg, plot, &overlay))
}

fn draw_lines<X, Y>(chart: &mut Chart<'_, '_, X, Y>, plot: &Plot, overlay: &mut Overlay) -> Drawn<()>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    for (index, series) in plot.series.iter().enumerate() {
        let colour = colour(index);
        let is_shown = |(x, y): &&(f64, f64)| is_shown(*x, plot.x_log) && is_shown(*y, plot.y_log);
        let shown: Vec<(f64, f64)> = series.points.iter().filter(is_shown).copied().collect();
        match series.posting {
            true => chart.draw_series(DashedLineSeries::new(shown.clone(), 7, 5, colour.stroke_width(2)))?,
            false => chart.draw_series(LineSeries::new(shown.clone(), colour.stroke_width(2)))?,
        };
        let dots = shown.len() <= DOTS_MAX;
        for point in shown {
            if dots {
                let style = if series.posting { colour.stroke_width(2) } else { colour.filled() };
                chart.draw_series(std::iter::once(Circle::new(point, 3, style)))?;
            }
            let (x, y) = chart.backend_coord(&point);
            let (name, over, up) = (&series.name, number(point.0), number(point.1));
            let text = format!("{name}\n{}: {over}\n{}: {up}", plot.x, plot.y);
            overlay.hover(&format!("circle cx=\"{x}\" cy=\"{y}\" r=\"8\""), &text);
        }
    }
    Ok(())
}

fn draw_bars<X, Y>(chart: &mut Chart<'_, '_, X, Y>, plot: &Plot, overlay: &mut Overlay) -> Drawn<()>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    let width = 0.8 / plot.series.len().max(1) as f64;
    let base = if plot.y_log { chart.y_range().start } else { 0.0 };
    for (index, series) in plot.series.iter().enumerate() {
        let shown = series.points.iter().filter(|(_, value)| is_shown(*value, plot.y_log));
        for &(category, value) in shown {
            let left = category + 0.1 + width * index as f64;
            let corners = [(left, value), (left + width * 0.92, base)];
            let fill = colour(index).mix(if series.posting { 0.3 } else { 1.0 }).filled();
            chart.draw_series(std::iter::once(Rectangle::new(corners, fill)))?;
            if series.posting {
                let edge = colour(index).stroke_width(1);
                chart.draw_series(std::iter::once(Rectangle::new(corners, edge)))?;
            }
            let (a, b) = (chart.backend_coord(&corners[0]), chart.backend_coord(&corners[1]));
            let (x, y) = (a.0.min(b.0), a.1.min(b.1));
            // Bars of a pixel are hard to point at.
            let (wide, tall) = (a.0.abs_diff(b.0).max(3), a.1.abs_diff(b.1).max(6));
            let name = plot.categories.get(category as usize).map_or("", String::as_str);
            let text = format!("{}\n{name}\n{}: {}", series.name, plot.y, number(value));
            let shape = format!("rect x=\"{x}\" y=\"{y}\" width=\"{wide}\" height=\"{tall}\"");
            overlay.hover(&shape, &text);
        }
    }
    Ok(())
}

fn draw_legend(area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>, plot: &Plot) -> Drawn<()> {
    for (index, series) in plot.series.iter().enumerate() {
        let y = 44 + index as i32 * 22;
        let colour = colour(index);
        match (plot.form, series.posting) {
            (Form::Bars, false) => area.draw(&Rectangle::new([(4, y), (18, y + 12)], colour.filled()))?,
            (Form::Bars, true) => {
                area.draw(&Rectangle::new([(4, y), (18, y + 12)], colour.mix(0.3).filled()))?;
                area.draw(&Rectangle::new([(4, y), (18, y + 12)], colour.stroke_width(1)))?;
            }
            (Form::Lines, posting) => {
                let pieces: &[(i32, i32)] = if posting { &[(2, 8), (13, 19)] } else { &[(2, 19)] };
                for (from, to) in pieces {
                    let line = vec![(*from, y + 6), (*to, y + 6)];
                    area.draw(&PathElement::new(line, colour.stroke_width(2)))?;
                }
            }
        }
        let name = match series.posting {
            true => format!("{} (posting)", series.name),
            false => series.name.clone(),
        };
        let style = font(13).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(name, (26, y + 6), style))?;
    }
    Ok(())
}

/// The drawing for a page: it scales with the page, takes its colour of text, and has a name for screen
/// readers.
fn finished(svg: &str, plot: &Plot, overlay: &Overlay) -> String {
    let svg = svg.trim_end().trim_end_matches("</svg>").replace(INK_TEXT, "currentColor");
    let (head, body) = svg.split_once('>').unwrap_or((&svg, ""));
    let sizes = head.split_once("viewBox=").map_or("", |(_, sizes)| sizes);
    let sizes = sizes.split('"').nth(1).unwrap_or("0 0 960 480");
    let title = escaped(&plot.title);
    format!(
        "<svg class=\"plot\" viewBox=\"{sizes}\" role=\"img\" aria-label=\"{title}\" \
         xmlns=\"http://www.w3.org/2000/svg\">{body}<g class=\"hover\">\n{}</g></svg>\n",
        overlay.markup
    )
}

#[cfg(test)]
mod tests {
    use extant_lab::report::Series;

    use super::*;

    fn plot(form: Form, x_log: bool, y_log: bool) -> Plot {
        let series = |name: &str, posting: bool| Series {
            name: name.to_owned(),
            posting,
            points: vec![(0.0, 3.0), (1.0, 40.0), (2.0, f64::NAN)],
        };
        Plot {
            id: "p".to_owned(),
            title: "a < b".to_owned(),
            x: "names [million]".to_owned(),
            y: "rate [1/s]".to_owned(),
            x_log,
            y_log,
            form,
            categories: vec![
                "first".to_owned(),
                "second & last, which is long".to_owned(),
                "third".to_owned(),
            ],
            series: vec![series("ours", false), series("theirs", true)],
            table: "t".to_owned(),
        }
    }

    #[test]
    fn each_form_and_axis_is_drawn_with_its_texts() {
        for form in [Form::Lines, Form::Bars] {
            for (x_log, y_log) in [(false, false), (false, true), (true, false), (true, true)] {
                let svg = svg(&plot(form, x_log, y_log)).unwrap();
                for text in ["a &lt; b", "names [million]", "rate [1/s]", "ours", "theirs (posting)"] {
                    assert!(svg.contains(text), "{text}: {svg}");
                }
                // A logarithmic x axis has no place for 0, no axis for NaN.
                let points = if form == Form::Lines && x_log { 2 } else { 4 };
                assert_eq!(svg.matches("<title>").count(), points, "{form:?} {x_log} {y_log}");
                assert!(!svg.contains(INK_TEXT) && svg.ends_with("</svg>\n"), "{svg}");
            }
        }
        assert!(svg(&plot(Form::Bars, false, false)).unwrap().contains("second &amp; last"));
        let none = Plot { series: Vec::new(), ..plot(Form::Lines, false, false) };
        assert!(svg(&none).unwrap_err().to_string().contains("no points"));
    }
}
