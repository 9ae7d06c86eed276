//! Every recorded case with logits: the recorded trees in, the oracle's logits out.

use std::path::PathBuf;

use synod_kernels::cpu::{CpuDevice, Isa};
use synod_kernels::reference::Reference;

use super::{LOGIT_GATE, cpu, fixtures, load};
use crate::family::{Plan, Readout};
use crate::model::Forward;
use crate::replay::{Case, case_files};

/// The largest distance of a logit from the recorded one, after every dimension has been compared.
fn distance(case: &Case, plan: &Plan, model: &mut dyn Forward) -> f64 {
    let logits = model.forward(&plan.trees.iter().collect::<Vec<_>>(), &|| true).unwrap();
    case.answered().unwrap().compare_logits(&logits, LOGIT_GATE).unwrap().largest
}

/// Checks the cases of `folder` that have logits, `only` those or all, and prints how far they were.
pub(super) fn check_cases(model: &mut dyn Forward, folder: &str, only: Option<&[&str]>) {
    let paths: Vec<PathBuf> = match only {
        Some(names) => names.iter().map(|name| fixtures(folder).join(format!("{name}.json"))).collect(),
        None => case_files(&fixtures(folder)).unwrap(),
    };
    let (mut checked, mut worst) = (0, 0.0_f64);
    for path in paths {
        let case = Case::read(&path).unwrap();
        if let Some(plan) = case.plan() {
            let distance = distance(&case, plan, model);
            assert!(distance <= LOGIT_GATE, "{}: a logit is {distance:e} from the recorded one", path.display());
            (checked, worst) = (checked + 1, worst.max(distance));
        }
    }
    assert!(checked > 0, "{folder}: no case");
    println!("{folder}: {checked} cases, largest distance of a logit {worst:.2e}, gate {LOGIT_GATE:.0e}");
}

#[test]
fn every_case_of_every_fixture_member() {
    for member in ["tiny-08b", "tiny-4b", "tiny-router", "tiny-short"] {
        check_cases(&mut load(cpu(2), member), &format!("vela/{member}"), None);
    }
}

/// The machine's fastest set is what the other tests run on: the others would only be tried on older machines.
#[test]
fn every_instruction_set_gives_the_recorded_logits() {
    let cores = CpuDevice::available_cores().unwrap();
    for isa in Isa::available() {
        println!("{}", isa.name());
        let device = CpuDevice::with_isa(&cores[..1], isa).unwrap();
        check_cases(&mut load(device, "tiny-08b"), "vela/tiny-08b", Some(&["golden"]));
    }
}

/// Shows that the layers are put together as the spec says even where a device's own errors would hide it.
#[test]
fn the_definition_gives_the_recorded_logits() {
    for member in ["tiny-08b", "tiny-4b", "tiny-router"] {
        check_cases(&mut load(Reference, member), &format!("vela/{member}"), Some(&["golden"]));
    }
}

/// The gate itself: one token less in the prefix, and one position off in a readout, are far outside of it.
#[test]
fn a_spoiled_case_is_outside_the_gate() {
    let mut model = load(Reference, "tiny-router");
    let case = Case::read(&fixtures("vela/tiny-router/candidates-only.json")).unwrap();
    let plan = || case.plan().unwrap().clone();
    assert!(distance(&case, &plan(), &mut model) <= LOGIT_GATE);
    let mut shorter = plan();
    let tree = &mut shorter.trees[0];
    tree.prefix = tree.prefix[1..].into();
    assert!(distance(&case, &shorter, &mut model) > 100.0 * LOGIT_GATE);
    let mut shifted = plan();
    let Readout::Candidates { options, .. } = &mut shifted.trees[0].blocks[0].readout else { panic!("candidates") };
    options[0] -= 1;
    assert!(distance(&case, &shifted, &mut model) > 100.0 * LOGIT_GATE);
}
