//! A small line plot as SVG: no fonts, no scripts. Pure.

/// Lines over one horizontal axis.
#[derive(Debug, Default)]
pub(crate) struct Plot {
    pub(crate) x_name: &'static str,
    pub(crate) y_name: &'static str,
    /// Whether the vertical axis is logarithmic.
    pub(crate) log: bool,
    pub(crate) lines: Vec<(String, Vec<(f64, f64)>)>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 50.0;
const TOP: f64 = 40.0;
const RIGHT: f64 = 150.0;
const COLOURS: [&str; 6] = ["#1b6ca8", "#c8553d", "#3a7d44", "#8a4fff", "#b08900", "#555555"];

impl Plot {
    pub(crate) fn svg(&self, title: &str) -> String {
        let points = || self.lines.iter().flat_map(|(_, points)| points.iter().copied());
        let x_max = points().map(|(x, _)| x).fold(1e-9, f64::max);
        let y_max = points().map(|(_, y)| y).fold(1e-9, f64::max);
        let y_min = if self.log { points().map(|(_, y)| y).filter(|y| *y > 0.0).fold(y_max, f64::min) } else { 0.0 };
        let x_at = |x: f64| LEFT + x / x_max * (WIDTH - LEFT - RIGHT);
        let share = |y: f64| {
            if self.log { (y.max(y_min) / y_min).ln() / (y_max / y_min).ln().max(1e-9) } else { y / y_max }
        };
        let y_at = |y: f64| HEIGHT - BOTTOM - share(y) * (HEIGHT - BOTTOM - TOP);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{title}</text>\n"
        );
        for step in 0..=4 {
            let part = f64::from(step) / 4.0;
            let x = x_max * part;
            let y = if self.log { y_min * (y_max / y_min).powf(part) } else { y_max * part };
            let (at, right) = (y_at(y), WIDTH - RIGHT);
            svg.push_str(&format!(
                "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#dddddd\"/>\n\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
                LEFT - 6.0,
                at + 4.0,
                short(y),
                x_at(x),
                HEIGHT - BOTTOM + 18.0,
                short(x)
            ));
        }
        for (nth, (name, points)) in self.lines.iter().enumerate() {
            let colour = COLOURS.get(nth % COLOURS.len()).copied().unwrap_or("black");
            let path: Vec<String> = points.iter().map(|(x, y)| format!("{:.1},{:.1}", x_at(*x), y_at(*y))).collect();
            let label = points.last().map_or(TOP, |(_, y)| y_at(*y));
            svg.push_str(&format!(
                "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>\n\
                 <text x=\"{:.1}\" y=\"{label:.1}\" fill=\"{colour}\">{name}</text>\n",
                path.join(" "),
                WIDTH - RIGHT + 8.0
            ));
        }
        svg.push_str(&format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n<text x=\"8\" y=\"{:.1}\">{}</text>\n</svg>\n",
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 10.0,
            self.x_name,
            TOP - 4.0,
            self.y_name
        ));
        svg
    }
}

fn short(value: f64) -> String {
    if value >= 1_000.0 {
        format!("{:.1}k", value / 1_000.0)
    } else if value >= 10.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_holds_every_line_inside_its_frame() {
        let lines = vec![("p50".to_owned(), vec![(0.0, 0.1), (100.0, 10.0)]), ("p99".to_owned(), vec![(50.0, 1.0)])];
        for log in [false, true] {
            let svg = Plot { x_name: "calls/s", y_name: "ms", log, lines: lines.clone() }.svg("t");
            assert_eq!(svg.matches("<polyline").count(), 2);
            let points = svg.split("points=\"").skip(1).flat_map(|rest| rest.split('"').next().unwrap().split(' '));
            for point in points {
                let (x, y) = point.split_once(',').unwrap();
                let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                assert!((LEFT..=WIDTH - RIGHT).contains(&x) && (TOP..=HEIGHT - BOTTOM).contains(&y), "{point}");
            }
        }
    }
}
