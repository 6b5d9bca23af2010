//! Checks of an engine after a power cut or on a damaged disk.

use proto::{Answer, Dictionary, Selection, Tier};
use storage_engine::{Engine, Position, SelectError};
use storage_model::answers::{Sums, model_sums, sums_of};

use super::history::Moment;

/// Returns the position of an entry of the model's log. `index` counts from 1.
pub(crate) fn position(index: usize) -> Position {
    Position { index: index as u64, log_id: bytes::Bytes::from(format!("id {}", index - 1)) }
}

/// Checks that all responses equal those of the model. The error describes the first difference.
pub(crate) fn check_answers(engine: &Engine, moment: &Moment, selections: &[Selection]) -> Result<(), String> {
    selections.iter().try_for_each(|selection| {
        let answer = engine.select(selection);
        check_answer(answer, moment, selection).map_err(|what| format!("{what}: {selection:?}"))
    })
}

fn check_answer(answer: Result<Answer, SelectError>, moment: &Moment, selection: &Selection) -> Result<(), String> {
    let horizon_ns = moment.horizons.latest(Tier::Raw);
    let answer = match answer {
        Err(SelectError::Engine(error)) => return Err(error.to_string()),
        Err(_refused) if selection.fold.window().start_ns < horizon_ns => return Ok(()),
        Err(refused) => return Err(format!("all samples are kept, but the engine answered: {refused}")),
        Ok(answer) => answer,
    };
    if let Some(missing) = answer.missing.iter().find(|missing| missing.window.end_ns > horizon_ns) {
        return Err(format!("a time is reported as missing although its samples are kept: {missing:?}"));
    }
    let got = sums_of(&answer, selection, &Dictionary::default());
    let (wanted, _) = model_sums(&moment.rows, &moment.horizons, selection, &[], &answer.missing);
    if got == wanted {
        return Ok(());
    }
    let missing_in = |of: &Sums, other: &Sums| {
        format!("{:?}", of.iter().filter(|cell| other.get(cell.0) != Some(cell.1)).collect::<Vec<_>>())
    };
    Err(format!("the answer has {}, and should have {}", missing_in(&got, &wanted), missing_in(&wanted, &got)))
}

/// Checks that nothing on disk is damaged.
pub(crate) fn check_disk(engine: &Engine) -> Result<(), String> {
    let verified = engine.verify().map_err(|error| error.to_string())?;
    if verified.faults == 0 { Ok(()) } else { Err(format!("{} faults: {:?}", verified.faults, verified.described)) }
}
