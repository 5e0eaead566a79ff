//! Messages of WS-Discovery (April 2005) as computers in Windows' network view use them, and WS-Transfer's Get, by
//! which Windows asks a computer for its name (Devices Profile for Web Services, 2006).
//!
//! The messages are SOAP 1.2 envelopes with WS-Addressing (August 2004). A target service sends [`hello`] and [`bye`] to
//! everybody, and answers a [`Request`]: Probe (who is there?), Resolve (where is this one?), and Get over HTTP.

use std::fmt;

use crate::xml::{self, Element, escaped};

/// UDP port.
pub const UDP_PORT: u16 = 3702;
/// TCP port of Get, as Windows uses it.
pub const HTTP_PORT: u16 = 5357;
/// Content type of SOAP 1.2.
pub const CONTENT_TYPE: &str = "application/soap+xml";
/// Longest message that is read. Windows sends some 1,000 bytes.
pub const MAX_MESSAGE: usize = 8 << 10;
/// Longest id of a message, because answers repeat it. An id is a UUID of 45 characters.
pub const MAX_ID: usize = 128;

const SOAP: &str = "http://www.w3.org/2003/05/soap-envelope";
const WSA: &str = "http://schemas.xmlsoap.org/ws/2004/08/addressing";
const WSD: &str = "http://schemas.xmlsoap.org/ws/2005/04/discovery";
const WSX: &str = "http://schemas.xmlsoap.org/ws/2004/09/mex";
const WSDP: &str = "http://schemas.xmlsoap.org/ws/2006/02/devprof";
const PNPX: &str = "http://schemas.microsoft.com/windows/pnpx/2005/10";
const PUB: &str = "http://schemas.microsoft.com/windows/pub/2005/07";
const TRANSFER: &str = "http://schemas.xmlsoap.org/ws/2004/09/transfer";
/// The address of everybody.
const EVERYBODY: &str = "urn:schemas-xmlsoap-org:ws:2005:04:discovery";

/// A UUID (RFC 4122).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Uuid([u8; 16]);

impl Uuid {
    /// A random one (version 4) of these bytes.
    #[must_use]
    pub fn of_random(mut bytes: [u8; 16]) -> Uuid {
        let [_, _, _, _, _, _, version, _, variant, ..] = &mut bytes;
        *version = *version & 0x0f | 0x40;
        *variant = *variant & 0x3f | 0x80;
        Uuid(bytes)
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// Why a message is not a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// It is longer than [`MAX_MESSAGE`].
    #[error("longer than {MAX_MESSAGE} bytes")]
    TooLong,
    /// It is no XML.
    #[error("{0}")]
    Xml(#[from] xml::Malformed),
    /// It is not a SOAP envelope with the headers of WS-Addressing.
    #[error("it is not a message of SOAP 1.2 with an action and an id")]
    Envelope,
    /// It has another action.
    #[error("its action is no request")]
    Action,
    /// Its body is not that of its action.
    #[error("its body does not fit its action")]
    Body,
}

/// What is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The id of the message.
    pub id: String,
    /// What is asked.
    pub wanted: Wanted,
}

/// What a request asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// All targets of certain types and scopes.
    Probe {
        /// Whether a computer has all types that are asked for.
        includes_computers: bool,
        /// Whether only targets of a scope are meant; we have none.
        is_scoped: bool,
    },
    /// Where the target with this address is.
    Resolve {
        /// The address.
        address: String,
    },
    /// The metadata of the target with this address.
    Get {
        /// The address.
        to: String,
    },
}

impl Request {
    /// Parses a message.
    ///
    /// # Errors
    /// It is no request.
    pub fn parse(bytes: &[u8]) -> Result<Request, Malformed> {
        if bytes.len() > MAX_MESSAGE {
            return Err(Malformed::TooLong);
        }
        let root = xml::parse(bytes)?;
        let part = |name| root.child(SOAP, name).filter(|_| root.is(SOAP, "Envelope"));
        let (header, body) = part("Header").zip(part("Body")).ok_or(Malformed::Envelope)?;
        let text = |name| header.child(WSA, name).map(|element| element.text.trim());
        let (action, id) = text("Action").zip(text("MessageID")).ok_or(Malformed::Envelope)?;
        if !(1..=MAX_ID).contains(&id.len()) {
            return Err(Malformed::Envelope);
        }
        let wanted = match action {
            action if is_in(WSD, action, "Probe") => {
                let probe = body.child(WSD, "Probe").ok_or(Malformed::Body)?;
                let is_scoped =
                    probe.child(WSD, "Scopes").is_some_and(|scopes| !scopes.text.trim().is_empty());
                Wanted::Probe { includes_computers: includes_computers(probe)?, is_scoped }
            }
            action if is_in(WSD, action, "Resolve") => {
                let reference =
                    body.child(WSD, "Resolve").and_then(|one| one.child(WSA, "EndpointReference"));
                let address = reference.and_then(|one| one.child(WSA, "Address")).ok_or(Malformed::Body)?;
                Wanted::Resolve { address: address.text.trim().to_owned() }
            }
            action if is_in(TRANSFER, action, "Get") => {
                Wanted::Get { to: text("To").ok_or(Malformed::Envelope)?.to_owned() }
            }
            _ => return Err(Malformed::Action),
        };
        Ok(Request { id: id.to_owned(), wanted })
    }
}

fn is_in(namespace: &str, action: &str, name: &str) -> bool {
    action.strip_prefix(namespace).and_then(|rest| rest.strip_prefix('/')) == Some(name)
}

/// Whether a computer has every type that a Probe asks for; without types, all are meant (WS-Discovery 5.2.3).
fn includes_computers(probe: &Element) -> Result<bool, Malformed> {
    let Some(types) = probe.child(WSD, "Types") else { return Ok(true) };
    let types = types.names().ok_or(Malformed::Body)?;
    Ok(types
        .iter()
        .all(|(namespace, name)| [(WSDP, "Device"), (PUB, "Computer")].contains(&(&**namespace, name))))
}

/// Where a message stands among those of its sender (WS-Discovery, appendix I).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sequence {
    /// The run of the sender: larger after each start.
    pub instance: u64,
    /// The number of the message in it.
    pub number: u64,
}

/// A computer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Computer {
    /// Its identity, the same in all runs.
    pub id: Uuid,
    /// Its name.
    pub name: String,
    /// Its workgroup.
    pub workgroup: String,
}

impl Computer {
    /// Its address, which does not depend on a network.
    #[must_use]
    pub fn address(&self) -> String {
        format!("urn:uuid:{}", self.id)
    }

    /// The path of its metadata over HTTP.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/{}", self.id)
    }

    /// The target, with where its metadata are.
    fn described(&self, place: Option<&str>) -> String {
        let places = place.map(|place| format!("<d:XAddrs>{}{}</d:XAddrs>", escaped(place), self.path()));
        format!(
            "<a:EndpointReference><a:Address>{}</a:Address></a:EndpointReference><d:Types>wsdp:Device pub:Computer</d:Types>{}\
             <d:MetadataVersion>1</d:MetadataVersion>",
            self.address(),
            places.unwrap_or_default()
        )
    }
}

fn envelope(header: &str, body: &str) -> Vec<u8> {
    // Prefixes are short, so that an answer is hardly longer than its question, except those of types: wsdd 0.7 does not
    // resolve them and expects these.
    format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?><s:Envelope xmlns:s=\"{SOAP}\" xmlns:a=\"{WSA}\" xmlns:d=\"{WSD}\" \
         xmlns:wsdp=\"{WSDP}\" xmlns:pub=\"{PUB}\"><s:Header>{header}</s:Header><s:Body>{body}</s:Body></s:Envelope>"
    )
    .into_bytes()
}

/// The header of a message of discovery.
fn header(action: &str, to: &str, message: Uuid, relates_to: Option<&str>, sequence: Sequence) -> String {
    let relates = relates_to.map(|id| format!("<a:RelatesTo>{}</a:RelatesTo>", escaped(id)));
    format!(
        "<a:To>{to}</a:To><a:Action>{WSD}/{action}</a:Action><a:MessageID>urn:uuid:{message}</a:MessageID>{}\
         <d:AppSequence InstanceId=\"{}\" MessageNumber=\"{}\"/>",
        relates.unwrap_or_default(),
        sequence.instance,
        sequence.number
    )
}

/// Hello: a computer has come. `place` is the beginning of the URL of its metadata.
#[must_use]
pub fn hello(computer: &Computer, place: &str, message: Uuid, sequence: Sequence) -> Vec<u8> {
    let body = format!("<d:Hello>{}</d:Hello>", computer.described(Some(place)));
    envelope(&header("Hello", EVERYBODY, message, None, sequence), &body)
}

/// Bye: it goes.
#[must_use]
pub fn bye(computer: &Computer, message: Uuid, sequence: Sequence) -> Vec<u8> {
    let address = computer.address();
    let body =
        format!("<d:Bye><a:EndpointReference><a:Address>{address}</a:Address></a:EndpointReference></d:Bye>");
    envelope(&header("Bye", EVERYBODY, message, None, sequence), &body)
}

/// The answer to a Probe or Resolve.
#[must_use]
pub fn matches(
    computer: &Computer,
    place: &str,
    request: &Request,
    message: Uuid,
    sequence: Sequence,
) -> Vec<u8> {
    let kind = match request.wanted {
        Wanted::Resolve { .. } => "Resolve",
        Wanted::Probe { .. } | Wanted::Get { .. } => "Probe",
    };
    let body = format!(
        "<d:{kind}Matches><d:{kind}Match>{}</d:{kind}Match></d:{kind}Matches>",
        computer.described(Some(place))
    );
    let to = format!("{WSA}/role/anonymous");
    envelope(&header(&format!("{kind}Matches"), &to, message, Some(&request.id), sequence), &body)
}

/// The answer to Get: what the device is, and that it hosts a computer of this name.
#[must_use]
pub fn metadata(computer: &Computer, version: &str, request: &str, message: Uuid) -> Vec<u8> {
    let (address, name, group) = (computer.address(), escaped(&computer.name), escaped(&computer.workgroup));
    let header = format!(
        "<a:To>{WSA}/role/anonymous</a:To><a:Action>{TRANSFER}/GetResponse</a:Action>\
         <a:MessageID>urn:uuid:{message}</a:MessageID><a:RelatesTo>{}</a:RelatesTo>",
        escaped(request)
    );
    let section = |dialect: &str, content: &str| {
        format!("<x:MetadataSection Dialect=\"{WSDP}/{dialect}\">{content}</x:MetadataSection>")
    };
    let device = format!(
        "<wsdp:ThisDevice><wsdp:FriendlyName>{name}</wsdp:FriendlyName><wsdp:FirmwareVersion>{}</wsdp:FirmwareVersion></wsdp:ThisDevice>",
        escaped(version)
    );
    let model = "<wsdp:ThisModel><wsdp:Manufacturer>Weft</wsdp:Manufacturer><wsdp:ModelName>Weft</wsdp:ModelName>\
                 <n:DeviceCategory xmlns:n=\"{}\">Computers</n:DeviceCategory></wsdp:ThisModel>";
    let host = format!(
        "<wsdp:Relationship Type=\"{WSDP}/host\"><wsdp:Host><a:EndpointReference><a:Address>{address}</a:Address></a:EndpointReference>\
         <wsdp:Types>pub:Computer</wsdp:Types><wsdp:ServiceId>{address}</wsdp:ServiceId><pub:Computer>{name}/Workgroup:{group}</pub:Computer></wsdp:Host>\
         </wsdp:Relationship>"
    );
    let body = format!(
        "<x:Metadata xmlns:x=\"{WSX}\">{}{}{}</x:Metadata>",
        section("ThisDevice", &device),
        section("ThisModel", &model.replace("{}", PNPX)),
        section("Relationship", &host)
    );
    envelope(&header, &body)
}

#[cfg(test)]
mod tests;
