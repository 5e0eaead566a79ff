use super::*;

/// A Probe as Windows 11 sends it.
const PROBE: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?><soap:Envelope xmlns:soap=\"http://www.w3.org/2003/05/soap-envelope\" \
    xmlns:wsa=\"http://schemas.xmlsoap.org/ws/2004/08/addressing\" xmlns:wsd=\"http://schemas.xmlsoap.org/ws/2005/04/discovery\" \
    xmlns:wsdp=\"http://schemas.xmlsoap.org/ws/2006/02/devprof\"><soap:Header>\
    <wsa:To>urn:schemas-xmlsoap-org:ws:2005:04:discovery</wsa:To>\
    <wsa:Action>http://schemas.xmlsoap.org/ws/2005/04/discovery/Probe</wsa:Action>\
    <wsa:MessageID>urn:uuid:0a6dc791-2be6-4991-9af1-454778a1917a</wsa:MessageID></soap:Header>\
    <soap:Body><wsd:Probe><wsd:Types>wsdp:Device</wsd:Types></wsd:Probe></soap:Body></soap:Envelope>";

fn computer() -> Computer {
    let id = Uuid::of_random([0xab; 16]);
    Computer { id, name: "nas & <co>".into(), workgroup: "HOME".into() }
}

const SEQUENCE: Sequence = Sequence { instance: 7, number: 3 };

fn message() -> Uuid {
    Uuid::of_random([1; 16])
}

#[test]
fn a_uuid_is_of_version_4() {
    assert_eq!(Uuid::of_random([0xff; 16]).to_string(), "ffffffff-ffff-4fff-bfff-ffffffffffff");
}

#[test]
fn a_probe_is_read() {
    let id = "urn:uuid:0a6dc791-2be6-4991-9af1-454778a1917a".to_owned();
    let wanted = Wanted::Probe { includes_computers: true, is_scoped: false };
    assert_eq!(Request::parse(PROBE.as_bytes()), Ok(Request { id, wanted }));
    let wanted = |text: &str| Request::parse(text.as_bytes()).unwrap().wanted;
    let of = |types: &str| PROBE.replace("<wsd:Types>wsdp:Device</wsd:Types>", types);
    for (types, includes_computers, is_scoped) in [
        ("", true, false),
        ("<wsd:Types> wsdp:Device\n p:Computer</wsd:Types>", true, false),
        ("<wsd:Types>wsdp:Device wsdp:Printer</wsd:Types>", false, false),
        ("<wsd:Scopes>urn:a</wsd:Scopes>", true, true),
        ("<wsd:Scopes/>", true, false),
    ] {
        let text = of(types).replace("<wsd:Probe>", &format!("<wsd:Probe xmlns:p='{PUB}'>"));
        assert_eq!(wanted(&text), Wanted::Probe { includes_computers, is_scoped }, "{types}");
    }
    assert_eq!(Request::parse(of("<wsd:Types>q:x</wsd:Types>").as_bytes()), Err(Malformed::Body));
}

#[test]
fn what_is_no_request_is_refused() {
    let refused = |text: &str| Request::parse(text.as_bytes()).unwrap_err();
    assert_eq!(refused(&PROBE.replace("discovery/Probe", "discovery/Hello")), Malformed::Action);
    assert_eq!(refused(&PROBE.replace("discovery/Probe", "discovery/Resolve")), Malformed::Body);
    assert_eq!(refused(&PROBE.replace("soap-envelope", "other")), Malformed::Envelope);
    assert_eq!(refused(&PROBE.replace("MessageID", "MessageNo")), Malformed::Envelope);
    let with_id =
        |len: usize| PROBE.replace("urn:uuid:0a6dc791-2be6-4991-9af1-454778a1917a", &"x".repeat(len));
    assert!(Request::parse(with_id(MAX_ID).as_bytes()).is_ok());
    assert_eq!(refused(&with_id(MAX_ID + 1)), Malformed::Envelope);
    assert_eq!(refused(&with_id(0)), Malformed::Envelope);
    assert_eq!(refused(&" ".repeat(MAX_MESSAGE + 1)), Malformed::TooLong);
    for len in 0..PROBE.len() {
        assert!(Request::parse(&PROBE.as_bytes()[..len]).is_err(), "{len}");
    }
}

#[test]
fn what_is_sent_is_well_formed_and_says_who() {
    let request = Request::parse(PROBE.as_bytes()).unwrap();
    let place = "http://192.0.2.7:5357";
    let url = format!("{place}/{}", computer().id);
    for (bytes, action, kind) in [
        (hello(&computer(), place, message(), SEQUENCE), "Hello", "Hello"),
        (matches(&computer(), place, &request, message(), SEQUENCE), "ProbeMatches", "ProbeMatches"),
    ] {
        let root = xml::parse(&bytes).unwrap();
        let header = root.child(SOAP, "Header").unwrap();
        assert_eq!(header.child(WSA, "Action").unwrap().text, format!("{WSD}/{action}"));
        let mut body = root.child(SOAP, "Body").unwrap().child(WSD, kind).unwrap();
        if kind == "ProbeMatches" {
            assert_eq!(header.child(WSA, "RelatesTo").unwrap().text, request.id);
            body = body.child(WSD, "ProbeMatch").unwrap();
        }
        assert_eq!(body.child(WSD, "XAddrs").unwrap().text, url);
        let types = body.child(WSD, "Types").unwrap().names().unwrap();
        assert!(types.contains(&(PUB.into(), "Computer")) && types.contains(&(WSDP.into(), "Device")));
    }
    assert!(xml::parse(&bye(&computer(), message(), SEQUENCE)).is_ok());
    let root = xml::parse(&metadata(&computer(), "1.0", "<id>", message())).unwrap();
    let sections = &root.child(SOAP, "Body").unwrap().child(WSX, "Metadata").unwrap().children;
    let host = sections[2].child(WSDP, "Relationship").unwrap().child(WSDP, "Host").unwrap();
    assert_eq!(host.child(PUB, "Computer").unwrap().text, "nas & <co>/Workgroup:HOME");
    assert_eq!(root.child(SOAP, "Header").unwrap().child(WSA, "RelatesTo").unwrap().text, "<id>");
}

#[test]
fn an_answer_is_not_much_longer_than_its_question() {
    // The shortest Probe that can be written.
    let shortest = format!(
        "<E xmlns='{SOAP}'><Header xmlns:a='{WSA}'><a:Action>{WSD}/Probe</a:Action><a:MessageID>1</a:MessageID></Header><Body>\
         <Probe xmlns='{WSD}'/></Body></E>"
    )
    .replace("<E ", "<Envelope ")
    .replace("</E>", "</Envelope>");
    let request = Request::parse(shortest.as_bytes()).unwrap();
    let place = "http://[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:5357";
    let answer = matches(&computer(), place, &request, message(), SEQUENCE);
    assert!(answer.len() < 4 * shortest.len(), "{} after {}", answer.len(), shortest.len());
    let answer = matches(&computer(), place, &Request::parse(PROBE.as_bytes()).unwrap(), message(), SEQUENCE);
    assert!(answer.len() < 2 * PROBE.len(), "{} after {}", answer.len(), PROBE.len());
}
