//! A small writer of SVG: elements with escaped text, scales with round ticks, and marks that differ by shape and
//! filling, so that no plot needs its colours to be understood.

use std::fmt::Write;

use crate::plan::text::is_hidden;

/// The styles that every plot uses; light and dark. Colours are Okabe and Ito's, told apart with any colour vision.
pub const STYLE: &str = "\
:root{--ink:#1b1f24;--soft:#57606a;--grid:#d8dee4;--paper:#fff;--cap:#b3261e;--good:#1a7f37;\
--fp32:#0072b2;--bf16:#c25500;--fp16:#007a5a;--w:#0072b2;--g:#8a5a00;--o:#7b3f8c;--a:#007a5a;--free:#e6eaee}\
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9da7b1;--grid:#30363d;--paper:#0d1117;--cap:#ff7b72;\
--good:#56d364;--fp32:#56b4e9;--bf16:#f0a040;--fp16:#3fd0a4;--w:#56b4e9;--g:#e6b450;--o:#d2a8ff;--a:#3fd0a4;\
--free:#21262d}}\
.plot{font:13px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;max-width:100%;height:auto}\
.plot text{fill:var(--ink);paint-order:stroke;stroke:var(--paper);stroke-width:3px;stroke-linejoin:round}.plot .soft{fill:var(--soft)}.plot .strong{font-weight:600}\
.plot .grid{stroke:var(--grid);stroke-width:1}.plot .axis{stroke:var(--soft);stroke-width:1}\
.plot .cap{stroke:var(--cap);stroke-width:1.5;stroke-dasharray:7 4;fill:none}.plot text.cap{fill:var(--cap);stroke:var(--paper);stroke-width:3px;stroke-dasharray:none}\
.plot .front{stroke:var(--good);stroke-width:2;fill:none}\
.plot .link{stroke:currentColor;stroke-width:1;fill:none;opacity:.45}\
.plot .model{stroke:currentColor;stroke-width:1.2;stroke-dasharray:2 3;fill:none;opacity:.8}\
.plot .fp32{color:var(--fp32)}.plot .bf16{color:var(--bf16)}.plot .fp16{color:var(--fp16)}.plot .other{color:var(--soft)}\
.plot .bad{color:var(--cap)}\
.plot .line{stroke:currentColor;stroke-width:1.6;fill:var(--paper)}.plot .full{fill:currentColor;stroke:none}\
.plot .cross{stroke:currentColor;stroke-width:2;fill:none}\
.plot .ring{stroke:var(--good);stroke-width:2;fill:none}\
.plot .w{fill:var(--w)}.plot .g{fill:var(--g)}.plot .o{fill:var(--o)}.plot .a{fill:var(--a)}\
.plot .free{fill:var(--free);stroke:var(--soft);stroke-dasharray:3 3}.plot text.on{fill:var(--paper);stroke:none;font-weight:600}";

/// Text made safe for XML content and attributes. Characters that XML 1.0 forbids, or that would hide or turn around
/// what a person reads, become the replacement character.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\t' | '\n' | '\r' => out.push(c),
            c if is_hidden(c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// A coordinate with at most one decimal; what is not finite is put at 0.
fn n(value: f64) -> String {
    let rounded = if value.is_finite() { (value * 10.0).round() / 10.0 } else { 0.0 };
    // Adding 0 turns -0 into 0.
    format!("{}", rounded + 0.0)
}

/// Where a text stands with respect to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// Begins there.
    Start,
    /// Is centred there.
    Middle,
    /// Ends there.
    End,
}

/// The outline of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A circle.
    Circle,
    /// A square.
    Square,
    /// A triangle that points up.
    Triangle,
}

/// How much of a mark is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filling {
    /// Outline only.
    Hollow,
    /// The left half.
    Half,
    /// All of it.
    Full,
}

/// A drawing under construction.
#[derive(Clone, Debug)]
pub struct Svg {
    name: String,
    title: String,
    description: String,
    /// Width in user units.
    pub width: f64,
    /// Height in user units.
    pub height: f64,
    body: String,
}

impl Svg {
    /// An empty drawing. `name` must be unique on a page; `title` and `description` are what a screen reader says.
    pub fn new(name: &str, title: &str, description: &str, width: f64, height: f64) -> Self {
        let (name, title, description) = (name.into(), title.into(), description.into());
        Svg { name, title, description, width, height, body: String::new() }
    }

    /// A straight line.
    pub fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        let _ = write!(
            self.body,
            "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" class=\"{class}\"/>",
            n(x1),
            n(y1),
            n(x2),
            n(y2)
        );
    }

    /// A line through points.
    pub fn path(&mut self, points: &[(f64, f64)], class: &str) {
        let points: Vec<String> = points.iter().map(|&(x, y)| format!("{},{}", n(x), n(y))).collect();
        let _ = write!(self.body, "<polyline points=\"{}\" class=\"{class}\"/>", points.join(" "));
    }

    /// A rectangle from its upper left corner.
    pub fn rect(&mut self, (x, y): (f64, f64), (w, h): (f64, f64), class: &str) {
        let (w, h) = (n(w.max(0.0)), n(h.max(0.0)));
        let _ =
            write!(self.body, "<rect x=\"{}\" y=\"{}\" width=\"{w}\" height=\"{h}\" class=\"{class}\"/>", n(x), n(y));
    }

    /// A text on the base line at a point.
    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (x, y) = (n(x), n(y));
        let _ = write!(
            self.body,
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" class=\"{class}\">{}</text>",
            escape(text)
        );
    }

    /// Begins a group whose parts share a class and, on hovering, a title.
    pub fn open(&mut self, class: &str, title: &str) {
        let _ = write!(self.body, "<g class=\"{class}\">");
        if !title.is_empty() {
            let _ = write!(self.body, "<title>{}</title>", escape(title));
        }
    }

    /// Ends the group begun last.
    pub fn close(&mut self) {
        self.body.push_str("</g>");
    }

    /// A mark of radius `r` around a point.
    pub fn mark(&mut self, shape: Shape, filling: Filling, (x, y): (f64, f64), r: f64) {
        self.outline(shape, (x, y), r, if filling == Filling::Full { "line full" } else { "line" });
        if filling != Filling::Half {
            return;
        }
        let half = match shape {
            Shape::Circle => format!("M{} {}A{r} {r} 0 0 0 {} {}Z", n(x), n(y - r), n(x), n(y + r)),
            Shape::Square => format!("M{} {}H{}V{}H{}Z", n(x - r), n(y - r), n(x), n(y + r), n(x - r)),
            Shape::Triangle => format!("M{} {}V{}H{}Z", n(x), n(y - r), n(y + r), n(x - r)),
        };
        let _ = write!(self.body, "<path d=\"{half}\" class=\"full\"/>");
    }

    fn outline(&mut self, shape: Shape, (x, y): (f64, f64), r: f64, class: &str) {
        match shape {
            Shape::Circle => {
                let _ = write!(self.body, "<circle cx=\"{}\" cy=\"{}\" r=\"{}\" class=\"{class}\"/>", n(x), n(y), n(r));
            }
            Shape::Square => self.rect((x - r, y - r), (2.0 * r, 2.0 * r), class),
            Shape::Triangle => {
                let path = format!("M{} {}L{} {}H{}Z", n(x), n(y - r), n(x + r), n(y + r), n(x - r));
                let _ = write!(self.body, "<path d=\"{path}\" class=\"{class}\"/>");
            }
        }
    }

    /// A ring around a mark of radius `r`: this one is the answer.
    pub fn ring(&mut self, at: (f64, f64), r: f64) {
        self.outline(Shape::Circle, at, r + 4.5, "ring");
    }

    /// A hollow mark with a cross over it and an arrow up: out of memory, the true peak lies higher.
    pub fn refused(&mut self, shape: Shape, (x, y): (f64, f64), r: f64) {
        self.outline(shape, (x, y), r, "line");
        self.line((x - r, y - r), (x + r, y + r), "cross");
        self.line((x - r, y + r), (x + r, y - r), "cross");
        self.path(&[(x - 3.0, y - r - 4.0), (x, y - r - 8.0), (x + 3.0, y - r - 4.0)], "cross");
    }

    /// The drawing as an element of an HTML page, which has [`STYLE`] in its head.
    pub fn inline(&self) -> String {
        self.element("", "")
    }

    /// The drawing as a file of its own.
    pub fn standalone(&self) -> String {
        let style = format!("<style>{STYLE}svg{{background:var(--paper)}}</style>");
        format!("{}\n", self.element(" xmlns=\"http://www.w3.org/2000/svg\"", &style))
    }

    fn element(&self, attributes: &str, head: &str) -> String {
        let (name, w, h) = (escape(&self.name), n(self.width), n(self.height));
        format!(
            "<svg{attributes} class=\"plot\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" role=\"img\" \
             aria-labelledby=\"{name}-title {name}-desc\">{head}<title id=\"{name}-title\">{}</title>\
             <desc id=\"{name}-desc\">{}</desc>{}</svg>",
            escape(&self.title),
            escape(&self.description),
            self.body
        )
    }
}

/// From values to coordinates.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    domain: (f64, f64),
    range: (f64, f64),
    log: bool,
}

impl Scale {
    /// Equal differences have equal lengths.
    pub fn linear(domain: (f64, f64), range: (f64, f64)) -> Self {
        Scale { domain, range, log: false }
    }

    /// Equal ratios have equal lengths; the domain lies above zero.
    pub fn logarithmic(domain: (f64, f64), range: (f64, f64)) -> Self {
        Scale { domain, range, log: true }
    }

    /// The coordinate of a value, kept inside the range.
    pub fn at(&self, value: f64) -> f64 {
        let place = |v: f64| if self.log { v.max(f64::MIN_POSITIVE).ln() } else { v };
        let (low, high) = (place(self.domain.0), place(self.domain.1));
        let share = if high > low { ((place(value) - low) / (high - low)).clamp(0.0, 1.0) } else { 0.5 };
        self.range.0 + share * (self.range.1 - self.range.0)
    }
}

/// Round numbers from 0 up to `max`, about `count` of them: steps of 1, 2 or 5 times a power of ten.
pub fn ticks(max: f64, count: usize) -> Vec<f64> {
    if !(max > 0.0 && max.is_finite()) {
        return vec![0.0];
    }
    let raw = max / count.max(1) as f64;
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|&step| step >= raw * 0.999).unwrap_or(raw);
    (0..).map(|i| i as f64 * step).take_while(|&tick| tick <= max * (1.0 + 1e-9)).collect()
}

/// A number without needless zeros.
pub fn short(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_everywhere() {
        let mut svg = Svg::new("x", "a<b", "\"&'", 10.0, 10.0);
        svg.open("fp32", "1 < 2 & \u{1}");
        svg.text((1.0, 2.0), Anchor::Start, "", "<script>");
        svg.close();
        let text = svg.inline();
        assert!(text.contains("a&lt;b") && text.contains("&quot;&amp;&#39;"), "{text}");
        assert!(text.contains("1 &lt; 2 &amp; \u{fffd}") && text.contains("&lt;script&gt;"), "{text}");
        assert!(!text.contains("<script"), "{text}");
    }

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks(10.0, 5), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(0.7, 4), [0.0, 0.2, 0.4, 0.6000000000000001]);
        assert_eq!(ticks(f64::NAN, 4), [0.0]);
        for max in [0.001, 3.3, 47.0, 512.0, 1e9] {
            let ticks = ticks(max, 6);
            assert!((3..=8).contains(&ticks.len()) && ticks.iter().all(|&t| t <= max * 1.001), "{max}: {ticks:?}");
        }
        assert_eq!(
            (short(0.5), short(12.0), short(400.0), short(0.0)),
            ("0.5".into(), "12".into(), "400".into(), "0".into())
        );
    }

    #[test]
    fn scales_stay_in_range() {
        let log = Scale::logarithmic((1.0, 16.0), (0.0, 100.0));
        assert_eq!((log.at(4.0).round(), log.at(64.0), log.at(0.0)), (50.0, 100.0, 0.0));
        assert_eq!(Scale::linear((3.0, 3.0), (0.0, 100.0)).at(3.0), 50.0);
        assert_eq!(n(f64::INFINITY), "0");
    }
}
