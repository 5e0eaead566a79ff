//! docs/result.schema.json describes the output: every possible field, no other, and its type.

use serde_json::Value;

use super::*;

fn schema() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/result.schema.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The part of JSON Schema that the file uses, but stricter: an undescribed field is an error.
fn check(root: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("{at}: {what}: {value}").chars().take(300).collect());
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.strip_prefix("#/$defs/").unwrap();
        check(root, &root["$defs"][name], value, at)?;
    }
    if schema.get("const").is_some_and(|constant| value != constant) {
        return wrong("not the constant");
    }
    if schema["enum"].as_array().is_some_and(|words| !words.contains(value)) {
        return wrong("none of the words");
    }
    if let Some(choices) = schema["oneOf"].as_array()
        && choices.iter().filter(|choice| check(root, choice, value, at).is_ok()).count() != 1
    {
        return wrong("not one of the choices");
    }
    if let Some(pattern) = schema["pattern"].as_str() {
        // The only one: pairs of numbers.
        assert_eq!(pattern, "^([0-9]+:[0-9]+( [0-9]+:[0-9]+)*)?$");
        let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let pairs = value.as_str().unwrap_or("-").split_terminator(' ');
        if !pairs.into_iter().all(|pair| pair.split_once(':').is_some_and(|(a, b)| number(a) && number(b))) {
            return wrong("not pairs");
        }
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(many) => many.iter().filter_map(Value::as_str).collect(),
        _ => vec![],
    };
    let is = |kind: &&str| match *kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        other => panic!("the schema has a type {other}"),
    };
    if !types.is_empty() && !types.iter().any(is) {
        return wrong("another type");
    }
    for (bound, holds) in [("minimum", f64::ge as fn(&f64, &f64) -> bool), ("maximum", f64::le)] {
        if let (Some(bound), Some(number)) = (schema[bound].as_f64(), value.as_f64())
            && !holds(&number, &bound)
        {
            return wrong("out of range");
        }
    }
    if let (Some(items), Some(values)) = (schema.get("items"), value.as_array()) {
        for (i, value) in values.iter().enumerate() {
            check(root, items, value, &format!("{at}[{i}]"))?;
        }
    }
    let Some(fields) = value.as_object() else { return Ok(()) };
    for name in schema["required"].as_array().into_iter().flatten() {
        if !fields.contains_key(name.as_str().unwrap()) {
            return wrong(&format!("lacks {name}"));
        }
    }
    for (name, value) in fields {
        let at = format!("{at}.{name}");
        match (schema["properties"].get(name), schema.get("additionalProperties")) {
            (Some(schema), _) | (None, Some(schema)) => check(root, schema, value, &at)?,
            (None, None) if schema.get("properties").is_some() => {
                return Err(format!("{at} is not described"));
            }
            (None, None) => {}
        }
    }
    Ok(())
}

/// A report in which every field is set.
fn full() -> Report {
    let mut report = sample();
    report.sections.extend(pictures());
    report.started = Some("2026-11-22T02:00:00Z".into());
    report.seconds = Some(1.5);
    report.others.push(report.environment.clone());
    report.environment.system = Some("Debian".into());
    report.environment.versions.insert("rdma-core".into(), "50".into());
    let mark = Mark { kind: MarkKind::Noisy, text: "medians differ".into() };
    report.marks.push(mark.clone());
    report.verdicts = [Some(0.5), None]
        .map(|ratio| Verdict { claim: "a claim".into(), ratio, bound: 1.0, holds: true })
        .into();
    let section = &mut report.sections[0];
    let text = || Some("text".to_owned());
    section.peer = Some(Peer {
        host: "nas".into(),
        software: text(),
        dialect: text(),
        signing: text(),
        encryption: text(),
        same_host: false,
    });
    section.notes.push("note".into());
    let point = &mut section.points[0];
    point.work.name = "job".into();
    point.work.rate = Some(1000);
    (point.reads, point.writes) = (Some(point.latency.clone()), Some(point.latency.clone()));
    point.marks.push(mark);
    point.timeline.push(Second {
        client_cores: Some(0.5),
        server_cores: Some(0.5),
        client_memory_bytes: Some(1),
        server_memory_bytes: Some(1),
        ..Second::default()
    });
    let work = Some(point.work.clone());
    section.refusals.push(Refusal { work, transport: "rnic".into(), reason: "no device".into() });
    report
}

#[test]
fn the_schema_describes_every_field_and_no_other() {
    let schema = schema();
    let written = serde_json::to_value(full()).unwrap();
    check(&schema, &schema, &written, "report").unwrap();
    // Each described field was present and checked.
    let text = written.to_string();
    let described = schema["$defs"].as_object().unwrap().values().chain([&schema]);
    for name in described.filter_map(|part| part["properties"].as_object()).flat_map(|fields| fields.keys()) {
        assert!(text.contains(&format!("\"{name}\":")), "{name} is described and never written");
    }
}

#[test]
fn the_schema_refuses_what_is_wrong() {
    let schema = schema();
    let refused = |change: &dyn Fn(&mut Value)| {
        let mut value = serde_json::to_value(full()).unwrap();
        change(&mut value);
        check(&schema, &schema, &value, "report").unwrap_err()
    };
    assert!(refused(&|v| v["schema"] = "weft-result/0".into()).contains("constant"));
    assert!(refused(&|v| v["sections"][0]["picture"] = "photo".into()).contains("none of the words"));
    assert!(refused(&|v| v["sections"][0]["points"][0]["work"]["mix"] = 5.into()).contains("choices"));
    assert!(refused(&|v| v["sections"][0]["points"][0]["iops"]["min"] = (-1).into()).contains("range"));
    assert!(
        refused(&|v| v["sections"][0]["points"][0]["histogram"]["counts"] = "5".into()).contains("pairs")
    );
    assert!(refused(&|v| v["environment"]["colour"] = "red".into()).contains("not described"));
    assert!(refused(&|v| _ = v.as_object_mut().unwrap().remove("sections")).contains("lacks"));
}
