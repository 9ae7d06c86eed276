use serde_json::{Value as Json, json};

use super::*;

fn member_file(name: &str) -> Json {
    let path = format!("{}/../tests/fixtures/members/{name}/calibration.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn read(file: &Json) -> Result<Calibration, CalibrationError> {
    Calibration::parse(file.to_string().as_bytes())
}

#[test]
fn a_member_with_a_broad_head() {
    let calibration = read(&member_file("tiny-08b")).unwrap();
    assert_eq!(calibration.temperature, Temperatures { choice: 1.15, score: 0.9, set: 1.3, span: 0.85 });
    assert_eq!(calibration.thresholds.len(), 6);
    assert_eq!(calibration.thresholds.get("span:halu"), Some(&0.03));
    let anchors = calibration.pii_length_rule.unwrap().anchors;
    assert_eq!(anchors.last(), Some(&Anchor { n_tokens: 1022.0, threshold: 0.005_919 }));
    let gate = SparseGate { k: 3.0, t_sparse: 0.1, probe_threshold: 0.5 };
    assert_eq!(calibration.pii_sparse_gate, Some(gate));
    // The order of labels is the order in which they are shown.
    let schema = calibration.pii_schema.unwrap();
    assert_eq!(schema.text, "Mark every piece of personal data.");
    assert_eq!(schema.options[..2].iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["person", "email"]);
    assert_eq!(schema.options.len(), 17);
    assert_eq!(calibration.relevance_schema.unwrap().options[2].1, "The context answers the request.");
    let broad = calibration.broad_head.unwrap();
    assert_eq!((broad.temperature, broad.threshold), (1.1, 0.5));
    assert_eq!(broad.router_label_sets[2], BTreeSet::from(["insult".to_owned(), "toxic".to_owned()]));
    assert_eq!(calibration.noul_calibration, Some(NoulCalibration { t: 1.4, b: -0.2, default: false }));
}

#[test]
fn absent_blocks() {
    let router = read(&member_file("tiny-router")).unwrap();
    assert_eq!((router.broad_head, router.pii_length_rule), (None, None));
    assert_eq!(router.pii_buckets[1], Bucket { name: "medium".to_owned(), max_tokens: 256.0, threshold: 0.3 });

    let short = read(&member_file("tiny-short")).unwrap();
    let halu = BTreeSet::from(["unsupported".to_owned()]);
    assert_eq!(short.broad_head.unwrap().router_label_sets, [short.pii_types, halu]);

    let nothing = read(&json!({})).unwrap();
    assert_eq!(nothing.temperature, Temperatures { choice: 1.0, score: 1.0, set: 1.0, span: 1.0 });
    assert_eq!(
        read(&json!({"temperature": null, "pii_buckets": null, "halu_schema": {}, "noul_calibration": {}})).unwrap(),
        nothing
    );
}

#[test]
fn a_gate_that_cannot_act_is_none() {
    let gate = |gate: Json| read(&json!({"pii_sparse_gate": gate})).unwrap().pii_sparse_gate;
    assert_eq!(gate(json!({"K": -1, "t_sparse": 0.1})), None);
    assert_eq!(gate(json!({"K": 3, "t_sparse": null})), None);
    assert_eq!(gate(json!({"t_sparse": 0.1})), None);
    let acts = SparseGate { k: 0.0, t_sparse: 0.1, probe_threshold: 0.5 };
    assert_eq!(gate(json!({"K": 0, "t_sparse": 0.1})), Some(acts));
}

/// The reference fails only where such a block is used.
#[test]
fn what_cannot_be_used_is_none() {
    let mut nothing = read(&json!({})).unwrap();
    for file in [
        json!({"broad_head": {}}),
        json!({"broad_head": {"temperature": 1.1, "router_label_sets": [["a"]]}}),
        json!({"noul_calibration": {"default": false}}),
        json!({"noul_calibration": {"T": 1.4}}),
        json!({"relevance_schema": {"text": "?", "levels": {"only": null}}}),
    ] {
        assert_eq!(read(&file).unwrap(), nothing, "{file}");
    }
    nothing.temperature.set = 1e-3;
    assert_eq!(read(&json!({"temperature": {"set": 0.001}})).unwrap(), nothing);
}

#[test]
fn errors_name_the_key() {
    let check = |pointer: &str, value: Json, expected: &str| {
        let mut file = member_file("tiny-08b");
        *file.pointer_mut(pointer).unwrap() = value;
        let error = read(&file).unwrap_err().to_string();
        assert_eq!(error, format!("calibration.json: {expected}; fetch the file again"));
    };
    check("", json!([]), "the file: expected an object, found a list");
    for wrong in [json!(0), json!(1e-4), json!(1001), json!(-1)] {
        let expected = format!("temperature.span: expected a number in [0.001, 1000], found {wrong}");
        check("/temperature/span", wrong, &expected);
    }
    check("/temperature", json!(1.5), "temperature: expected an object of temperatures, found 1.5");
    check("/thresholds/set:*", json!(1.5), "thresholds.set:*: expected a number in [0, 1], found 1.5");
    check("/pii_types/3", json!(true), "pii_types[3]: expected text, found true");
    check(
        "/pii_length_rule/anchors/1/n_tokens",
        json!(21),
        "pii_length_rule.anchors[1].n_tokens: expected more tokens than at the anchor before, found 21",
    );
    check(
        "/pii_length_rule/anchors/2/threshold",
        json!(0.0),
        "pii_length_rule.anchors[2].threshold: expected a threshold with a logarithm, found 0.0",
    );
    check("/pii_length_rule/anchors", json!([]), "pii_length_rule.anchors: expected at least one anchor, found a list");
    check("/pii_buckets/1/threshold", json!("x"), "pii_buckets[1].threshold: expected a number in [0, 1], found text");
    check("/pii_schema/text", json!(" "), "pii_schema.text: expected text, found text");
    check(
        "/relevance_schema/levels",
        json!({}),
        "relevance_schema.levels: expected at least one name, found an object",
    );
    check("/broad_head/threshold", json!(2), "broad_head.threshold: expected a number in [0, 1], found 2");
    check("/noul_calibration/T", json!(-1), "noul_calibration.T: expected a number in [0.001, 1000], found -1");
    let error = Calibration::parse(b"{\"temperature\": NaN}").unwrap_err().to_string();
    assert!(error.starts_with("calibration.json: not JSON at byte 16: "), "{error}");
}
