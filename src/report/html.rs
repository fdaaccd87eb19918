//! A study as one HTML page that needs nothing else: no network, no script, no font. Light and dark, narrow and wide.

use std::fmt::Write;

use super::plots::{self, Plot};
use super::sheet::{Row, Sheet};
use super::svg::{STYLE, escape, short};
use super::terminal;
use crate::plan::text::shell_word;
use crate::plan::{ByteSize, OptimizerKind, Outcome};
use crate::probe::protocol::ModelSource;
use crate::study::best::{Best, NeighbourTable};

/// Width of plots on wide screens, and on narrow ones.
const WIDE: f64 = 860.0;
const NARROW: f64 = 350.0;

/// Styles of the page around the plots.
const PAGE: &str = "\
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}\
main{max-width:900px;margin:0 auto;padding:20px 20px 60px}h1{font-size:1.5rem;line-height:1.25;margin:.4em 0}\
h2{font-size:1.15rem;margin:2em 0 .4em}p{margin:.5em 0}.soft,figcaption,footer{color:var(--soft)}figcaption{font-size:.9rem}\
figure{margin:0}.narrow{display:none}.answer{border:1px solid var(--grid);border-left:5px solid var(--good);border-radius:6px;padding:12px 18px;margin:16px 0}\
.answer.none{border-left-color:var(--cap)}.answer strong{font-size:1.1rem}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15em 1.2em;margin:.6em 0}dt{color:var(--soft)}dd{margin:0}\
code,pre{font:.9em ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace}pre{background:var(--free);padding:10px 14px;border-radius:6px;overflow-x:auto}\
.wide-table{overflow-x:auto}table{border-collapse:collapse;font-size:.84rem;width:100%}th,td{text-align:left;padding:5px 9px 5px 0;border-bottom:1px solid var(--grid);white-space:nowrap;vertical-align:top}\
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}td.why{white-space:normal;min-width:13em;color:var(--soft)}\
tr.winner td{font-weight:600}tr.winner td.why{font-weight:400}\
@media(max-width:700px){main{padding:12px}.wide{display:none}.narrow{display:block}dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.4em}}\
@media print{.narrow{display:none}.wide{display:block}}";

/// The page.
pub fn page(sheet: &Sheet) -> String {
    let model = escape(&sheet.model());
    let cap = sheet.cap().map_or(String::new(), |cap| format!(" in {}", ByteSize(cap)));
    let mut out = String::new();
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>{model}{cap} · autofit</title>\
         <style>{STYLE}{PAGE}</style></head>\n<body><main>\n<h1>Fine-tuning {model}{cap}</h1>\n"
    );
    out += &setting(sheet);
    out += &conclusion(sheet);
    let wide = plots::all(sheet, WIDE, "");
    let narrow = plots::all(sheet, NARROW, "-narrow");
    for (wide, narrow) in wide.iter().zip(&narrow) {
        out += &figure(wide, narrow);
    }
    if let Some(best) = &sheet.best {
        out += &neighbours(best);
    }
    out += &table(sheet);
    out += &next_steps(sheet);
    let version = sheet.identity.as_ref().map_or(String::new(), |i| format!(" {}", escape(&i.version)));
    let _ = write!(
        out,
        "<footer><p>Written by autofit{version} from <code>trials.csv</code>, <code>best.toml</code> and \
         <code>study.toml</code> beside this file.</p></footer>\n</main></body></html>\n"
    );
    out
}

/// What was asked, in one line.
fn setting(sheet: &Sheet) -> String {
    let mut facts = Vec::new();
    if let Some(identity) = &sheet.identity {
        facts.push(format!("effective batch {}", identity.effective_batch));
        facts.push(format!("rows of up to {} tokens", identity.longest));
        facts.push(format!("on {}", escape(&identity.device)));
    }
    if let Some(data) = sheet.best.as_ref().and_then(|best| best.data.as_ref()) {
        let name = data.file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        facts.push(format!("{} rows of {}", data.rows, escape(&name)));
    }
    let count = |wanted: fn(&&Row) -> bool| sheet.rows.iter().filter(wanted).count();
    let seconds: f64 = sheet.rows.iter().map(|row| row.trial.attempt.wall_seconds).filter(|s| s.is_finite()).sum();
    facts.push(format!(
        "{} probes in {}, {} of them out of memory",
        count(|row| row.ran()),
        duration(seconds),
        count(|row| row.trial.attempt.outcome == Outcome::Oom)
    ));
    format!("<p class=\"soft\">{}</p>\n", facts.join(" · "))
}

/// The answer in words, or why there is none.
fn conclusion(sheet: &Sheet) -> String {
    match &sheet.best {
        Some(best) => answer(sheet, best),
        None => no_answer(sheet),
    }
}

fn answer(sheet: &Sheet, best: &Best) -> String {
    let (config, measured) = (&best.config, &best.measured);
    let words = terminal::configuration(&config.knobs(), config.effective_batch, sheet.layers_or_guess());
    let mut facts = vec![(
        "Speed",
        format!(
            "{} samples/s (95 % between {} and {}), {} s an optimizer step",
            short(measured.samples_per_second),
            short(measured.samples_per_second_low),
            short(measured.samples_per_second_high),
            short(measured.step_seconds)
        ),
    )];
    let peak = ByteSize(measured.peak_bytes);
    facts.push((
        "Memory",
        match (measured.cap_bytes, measured.margin_bytes) {
            (Some(cap), Some(margin)) => format!("{peak} of {} at the peak, {} left", ByteSize(cap), ByteSize(margin)),
            _ => format!("{peak} at the peak"),
        },
    ));
    facts.push(("Gained", gain(sheet, best)));
    let certified = if measured.certified {
        "passed a longer probe with an evaluation batch"
    } else {
        "no: there was no time for the longer probe with an evaluation batch"
    };
    facts.push(("Certified", certified.into()));
    let list: String = facts.iter().map(|(name, text)| format!("<dt>{name}</dt><dd>{}</dd>", escape(text))).collect();
    format!("<div class=\"answer\"><strong>{}</strong><dl>{list}</dl></div>\n", escape(&words))
}

/// What the search was good for.
fn gain(sheet: &Sheet, best: &Best) -> String {
    let Some(naive) = sheet.naive() else {
        return "fp32 without recomputation was not measured here: nothing to compare with".into();
    };
    let knobs = &naive.trial.knobs;
    if *knobs == best.config.knobs() {
        return "none: the plain choice (fp32, nothing recomputed) is the fastest that fits, and now you know".into();
    }
    let speed = sheet.speed(knobs).unwrap_or(f64::NAN);
    let effective = best.config.effective_batch;
    format!(
        "{:+.0} % over the plain choice (fp32 · micro-batch {} × {} · keep all layers: {} samples/s)",
        100.0 * (best.measured.samples_per_second / speed - 1.0),
        knobs.micro_batch,
        knobs.accumulation(effective),
        short(speed)
    )
}

fn no_answer(sheet: &Sheet) -> String {
    let (heading, text) = match sheet.fastest() {
        Some(row) => (
            "No answer yet: the study is running, or was stopped.".to_string(),
            format!(
                "The best so far is trial {}: {}, {} samples/s.",
                row.trial.number,
                words(row, sheet),
                short(row.samples_per_second.unwrap_or(f64::NAN))
            ),
        ),
        None => match sheet.rows.iter().find(|row| row.trial.attempt.outcome == Outcome::Oom) {
            Some(_) => {
                let cap = sheet.cap().map_or("the device's memory".into(), |cap| ByteSize(cap).to_string());
                let least = sheet.rows.iter().filter_map(|row| row.refused(sheet.cap())).min();
                let least = least
                    .map_or(String::new(), |b| format!(" The least demanding one needs more than {}.", ByteSize(b)));
                (
                    format!("Nothing fits into {cap}."),
                    format!("Every configuration that was probed ran out of memory.{least}"),
                )
            }
            None => (
                "Nothing was measured.".into(),
                match sheet.rows.iter().rev().find(|row| row.ran()) {
                    Some(row) => format!("The last probe ended so: {}", row.trial.attempt.reason),
                    None => "No probe has ended yet.".into(),
                },
            ),
        },
    };
    format!("<div class=\"answer none\"><strong>{}</strong><p>{}</p></div>\n", escape(&heading), escape(&text))
}

fn words(row: &Row, sheet: &Sheet) -> String {
    let knobs = &row.trial.knobs;
    terminal::configuration(knobs, sheet.effective_batch().unwrap_or(knobs.micro_batch), sheet.layers_or_guess())
}

fn figure(wide: &Plot, narrow: &Plot) -> String {
    format!(
        "<section><h2>{}</h2><figure><div class=\"wide\">{}</div><div class=\"narrow\">{}</div>\
         <figcaption>{}</figcaption></figure></section>\n",
        escape(wide.title),
        wide.svg.inline(),
        narrow.svg.inline(),
        escape(&wide.caption)
    )
}

/// What lies next to the answer.
fn neighbours(best: &Best) -> String {
    let entry = |what: &str, table: &NeighbourTable| {
        let which = match (table.micro_batch, table.checkpoint_layers) {
            (Some(micro), Some(layers)) => format!("micro-batch {micro}, {layers} layers recomputed: "),
            _ => String::new(),
        };
        let outcome = match table.outcome.parse::<Outcome>() {
            Ok(outcome) => format!("{}. ", plots::outcome(outcome)),
            Err(_) if table.outcome == "none" => "there is none. ".into(),
            Err(_) => format!("{}. ", table.outcome),
        };
        format!(
            "<dt>{what}</dt><dd>{}<strong>{}</strong><span class=\"soft\">{}</span></dd>",
            escape(&which),
            escape(&outcome),
            escape(&table.reason)
        )
    };
    format!(
        "<section><h2>Next to the answer</h2><dl>{}{}</dl></section>\n",
        entry("One size larger", &best.neighbour),
        entry("Fewer layers recomputed", &best.density_neighbour)
    )
}

/// Every trial, the answer's first.
fn table(sheet: &Sheet) -> String {
    let layers = sheet.layers_or_guess();
    let optimizers = sheet.rows.iter().any(|row| row.trial.knobs.optimizer != OptimizerKind::AdamW);
    let mut out = String::from(
        "<section><h2>Every trial</h2><div class=\"wide-table\" tabindex=\"0\" role=\"region\" aria-label=\"Every trial\">\
         <table><thead><tr><th class=\"n\">#</th><th>outcome</th><th>precision</th>",
    );
    if optimizers {
        out += "<th>optimizer</th>";
    }
    out += "<th class=\"n\">micro × accum</th><th class=\"n\">recomputed</th><th class=\"n\">peak</th>\
            <th class=\"n\">samples/s</th><th class=\"n\">s/step</th><th>why</th><th>what happened</th></tr></thead><tbody>\n";
    for row in sheet.ranked() {
        let (trial, knobs) = (&row.trial, &row.trial.knobs);
        let winner = Some(*knobs) == sheet.winner();
        let accumulation =
            row.accumulation.filter(|&a| a > 0).or_else(|| Some(knobs.accumulation(sheet.effective_batch()?)));
        let cut = accumulation.map_or(knobs.micro_batch.to_string(), |a| format!("{} × {a}", knobs.micro_batch));
        let number = |value: Option<f64>| value.map_or("–".to_string(), short);
        let _ = write!(
            out,
            "<tr{} data-trial=\"{}\"><td class=\"n\">{}{}</td><td>{}</td><td>{}</td>",
            if winner { " class=\"winner\"" } else { "" },
            trial.number,
            if winner { "▸ " } else { "" },
            trial.number,
            plots::outcome(trial.attempt.outcome),
            escape(&extras(row))
        );
        if optimizers {
            let _ = write!(out, "<td>{}</td>", knobs.optimizer);
        }
        let _ = writeln!(
            out,
            "<td class=\"n\">{cut}</td><td class=\"n\">{}/{layers}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td>{}</td><td class=\"why\">{}</td></tr>",
            knobs.checkpoint_layers,
            row.peak().map_or("–".into(), |peak| ByteSize(peak).to_string()),
            number(row.samples_per_second),
            number(row.step_seconds),
            trial.purpose,
            escape(&trial.attempt.reason)
        );
    }
    out + "</tbody></table></div></section>\n"
}

/// Precision, with what else sets the branch apart.
fn extras(row: &Row) -> String {
    let knobs = &row.trial.knobs;
    let mut text = knobs.precision.to_string();
    if let Some(frozen) = knobs.frozen_layers {
        text += &format!(", {frozen} frozen");
    }
    if let Some(rank) = knobs.lora_rank {
        text += &format!(", LoRA {rank}");
    }
    text
}

/// Commands to go on with.
fn next_steps(sheet: &Sheet) -> String {
    let mut out = String::from("<section><h2>What to do next</h2>");
    match &sheet.best {
        Some(best) => {
            let file = shell_word(&sheet.folder.join(crate::study::journal::BEST).display().to_string());
            if let ModelSource::Program(name) = &best.model.source {
                let _ =
                    write!(out, "<p>Train with the program that has the model {}, at these knobs.</p>", escape(name));
                return out + "</section>\n";
            }
            let run = match (&best.data, &best.model.source) {
                (Some(data), ModelSource::Folder(_)) => {
                    format!("autofit run --config {file} --data {}", shell_word(&data.file.display().to_string()))
                }
                _ => format!("autofit run --config {file} --model DIR --data FILE.csv"),
            };
            let _ = write!(
                out,
                "<p>Train with the answer:</p><pre>{}</pre><p>Or take it to another tool:</p><pre>{}</pre>",
                escape(&run),
                escape(&format!("autofit export --config {file} --to hf"))
            );
            if !best.measured.certified {
                out += "<p>The answer is not certified: run the same <code>autofit probe</code> again, it goes on \
                        where it stopped.</p>";
            }
        }
        None if sheet.fastest().is_none() && sheet.rows.iter().any(|r| r.trial.attempt.outcome == Outcome::Oom) => {
            let cap = sheet.cap().map_or("6G".into(), |cap| format!("{}M", cap >> 20));
            let _ = write!(
                out,
                "<p>Ask which models fit, and with which settings:</p><pre>autofit estimate --vram {cap}</pre>\
                 <p>What lowers memory, the gentlest first: recompute all layers and use bf16 (the default search \
                 space does both), shorter rows (<code>--max-length</code>), an optimizer with less state \
                 (<code>--space memory</code>), a smaller model.</p>"
            );
        }
        None => {
            out += "<p>Run the same <code>autofit probe</code> command again: it goes on where it stopped.</p>";
        }
    }
    out + "</section>\n"
}

/// `48 s`, `3 min 20 s`, `1 h 5 min`.
fn duration(seconds: f64) -> String {
    let s = seconds.round() as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        _ => format!("{} h {} min", s / 3600, s / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(
            (duration(48.4), duration(200.0), duration(3900.0)),
            ("48 s".into(), "3 min 20 s".into(), "1 h 5 min".into())
        );
    }
}
