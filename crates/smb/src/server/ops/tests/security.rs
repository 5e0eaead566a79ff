//! Security descriptors: set, shown, inherited, and enforced.

use weft_store::rights::Right;
use weft_wire::security::{SecurityDescriptor, Sid};
use weft_wire::smb2::create_context::{RequestContext, ResponseContext};
use weft_wire::smb2::query_info::{InfoType, Request, Response, SecurityInformation};

use super::info::set_security;
use super::*;

const ALL: SecurityInformation = SecurityInformation(7);

impl Bench {
    /// The same server and connection, as another user.
    pub(super) fn as_user(&self, user: &str) -> Bench {
        let share = self.tree.share.clone().unwrap();
        let session = self.another_session(user);
        let tree = session.connect(Some(share), Right::Write, 10).unwrap();
        Bench {
            vfs: self.vfs.clone(),
            server: self.server.clone(),
            client: self.client.clone(),
            connection: self.connection.clone(),
            session,
            tree,
            ids: Cell::new(1 << 20),
        }
    }

    fn sid(&self) -> Sid {
        self.server.directory().accounts.sid_of_user(&self.session.user)
    }

    /// SDDL in which ME is this user.
    fn descriptor(&self, text: &str) -> SecurityDescriptor {
        text.replace("ME", &self.sid().to_string()).parse().unwrap()
    }

    pub(super) async fn shown(&self, file: FileId) -> Result<SecurityDescriptor, NtStatus> {
        let request = Request {
            info_type: InfoType::SECURITY,
            class: 0,
            output_buffer_length: 4096,
            additional_information: ALL.0,
            flags: 0,
            file,
            input: Bytes::new(),
        };
        let message = self.ask(Command::QueryInfo, |out| request.emit(out)).await?;
        Ok(SecurityDescriptor::parse(&Response::parse(&message).unwrap().buffer).unwrap())
    }

    /// Opens, sets the DACL, closes.
    async fn protect(&self, wish: &Wish<'_>, text: &str) {
        let file = self.open(wish).await.unwrap();
        let bytes = self.descriptor(text).to_bytes();
        set_security(self, file, SecurityInformation::DACL, &bytes).await.unwrap();
        self.close(file).await.unwrap();
    }

    async fn may(&self, path: &str, access: AccessMask) -> bool {
        let wish = Wish { access, options: CreateOptions::NONE, ..Wish::file(path) };
        match self.open(&wish).await {
            Ok(file) => self.close(file).await.is_ok(),
            Err(NtStatus::ACCESS_DENIED) => false,
            Err(other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_file_is_shared_until_somebody_protects_it() {
    run(async |alice| {
        let bob = alice.as_user("bob");
        alice.put("f", b"mine").await;
        assert!(bob.may("f", AccessMask::FILE_ALL).await);
        alice.protect(&Wish::file("f"), "D:P(A;;FA;;;ME)").await;
        assert!(!bob.may("f", AccessMask::FILE_READ_DATA).await);
        assert!(!bob.may("f", AccessMask::WRITE_DAC).await);
        assert!(alice.may("f", AccessMask::FILE_ALL).await);
        // It is in a directory that everybody may write: one may delete it there, and see that it exists.
        assert!(bob.may("f", AccessMask::DELETE | AccessMask::FILE_READ_ATTRIBUTES).await);
        // The owner can always restore access.
        alice.protect(&Wish::file("f"), "D:P").await;
        assert!(!alice.may("f", AccessMask::FILE_READ_DATA).await);
        let dac = Wish { access: AccessMask::WRITE_DAC, ..Wish::file("f") };
        alice.protect(&dac, "D:(A;;FR;;;WD)").await;
        assert!(bob.may("f", AccessMask::FILE_READ_DATA).await);
        assert!(!bob.may("f", AccessMask::FILE_WRITE_DATA).await);
    });
}

#[test]
fn what_is_made_in_a_protected_directory_inherits() {
    run(async |alice| {
        let bob = alice.as_user("bob");
        alice.mkdir("d").await;
        let text = "D:P(A;OICI;FA;;;ME)(A;OICI;0x1200a9;;;WD)(A;OICIIO;FA;;;CO)";
        alice.protect(&Wish::dir("d"), text).await;
        let make = Wish { disposition: CreateDisposition::Create, ..Wish::file("d\\f") };
        assert_eq!(status(bob.open(&make).await), NtStatus::ACCESS_DENIED);
        let file = alice.open(&make).await.unwrap();
        let shown = alice.shown(file).await.unwrap();
        assert_eq!(shown.owner, Some(alice.sid()));
        let wanted = alice.descriptor("D:(A;;FA;;;ME)(A;;0x1200a9;;;WD)(A;;FA;;;ME)");
        assert_eq!(shown.dacl, wanted.dacl, "{shown}");
        assert!(bob.may("d\\f", AccessMask::FILE_READ_DATA).await);
        assert!(!bob.may("d\\f", AccessMask::FILE_WRITE_DATA).await);
        assert!(!bob.may("d\\f", AccessMask::DELETE).await);
        alice.close(file).await.unwrap();
        // Nor may he empty it, replace it by renaming, or move anything there.
        let empty = Wish {
            disposition: CreateDisposition::Overwrite,
            access: AccessMask::FILE_READ_DATA,
            ..Wish::file("d\\f")
        };
        assert_eq!(status(bob.open(&empty).await), NtStatus::ACCESS_DENIED);
        bob.put("g", b"").await;
        for to in ["d\\g", "d\\f"] {
            let file = bob.open(&Wish::file("g")).await.unwrap();
            let rename = weft_wire::smb2::fscc::file::Rename {
                replace_if_exists: true,
                root_directory: 0,
                name: to.into(),
            };
            let renamed =
                info::set(&bob, file, weft_wire::smb2::fscc::FileClass::RENAME, |out| rename.emit(out));
            assert_eq!(status(renamed.await), NtStatus::ACCESS_DENIED, "{to}");
            bob.close(file).await.unwrap();
        }
    });
}

#[test]
fn a_creator_may_bring_a_descriptor_and_ask_what_it_grants() {
    run(async |alice| {
        let asked = alice.descriptor("D:(A;;FR;;;ME)");
        let make = Wish {
            disposition: CreateDisposition::Create,
            contexts: vec![RequestContext::SecurityDescriptor(asked.to_bytes().into())],
            ..Wish::file("f")
        };
        let file = alice.open(&make).await.unwrap();
        assert_eq!(alice.shown(file).await.unwrap().dacl, asked.dacl);
        alice.close(file).await.unwrap();
        let ask = Wish {
            access: AccessMask::FILE_READ_DATA,
            contexts: vec![RequestContext::MaximalAccess(None)],
            ..Wish::file("f")
        };
        let response = alice.create(&ask).await.unwrap();
        let own = AccessMask::FILE_GENERIC_READ | AccessMask::READ_CONTROL | AccessMask::WRITE_DAC;
        // The rights that the directory adds.
        let access = (own | AccessMask::DELETE).0;
        let wanted = ResponseContext::MaximalAccess { status: NtStatus::SUCCESS, access };
        assert_eq!(response.contexts, [wanted]);
        // Somebody else as the owner, and bytes that are not a descriptor.
        let stranger = alice.descriptor("O:S-1-5-21-9-9-9-9D:(A;;FR;;;ME)");
        for (bytes, wanted) in
            [(stranger.to_bytes(), NtStatus(0xC000_005A)), (vec![1, 2, 3], NtStatus(0xC000_0079))]
        {
            let make = Wish {
                contexts: vec![RequestContext::SecurityDescriptor(bytes.into())],
                disposition: CreateDisposition::Create,
                ..Wish::file("g")
            };
            assert_eq!(status(alice.open(&make).await), wanted);
            assert!(!alice.exists("g").await);
        }
    });
}

#[test]
fn ownership_is_taken_and_not_given() {
    run(async |alice| {
        let bob = alice.as_user("bob");
        alice.put("f", b"").await;
        let file = alice.open(&Wish::file("f")).await.unwrap();
        let owner = SecurityInformation::OWNER;
        let to_bob =
            SecurityDescriptor { owner: Some(bob.sid()), ..SecurityDescriptor::default() }.to_bytes();
        assert_eq!(status(set_security(&alice, file, owner, &to_bob).await), NtStatus(0xC000_005A));
        let nobody = SecurityDescriptor::default().to_bytes();
        assert_eq!(status(set_security(&alice, file, owner, &nobody).await), NtStatus(0xC000_005A));
        set_security(
            &alice,
            file,
            SecurityInformation::DACL,
            &bob.descriptor("D:(A;;0x80000;;;ME)").to_bytes(),
        )
        .await
        .unwrap();
        let take = Wish { access: AccessMask::WRITE_OWNER, ..Wish::file("f") };
        let taken = bob.open(&take).await.unwrap();
        set_security(&bob, taken, owner, &to_bob).await.unwrap();
        assert!(bob.may("f", AccessMask::WRITE_DAC).await);
        assert!(!alice.may("f", AccessMask::WRITE_DAC).await);
    });
}

#[test]
fn a_share_that_hides_lists_what_its_user_may_read() {
    run(async |alice| {
        let bob = alice.as_user("bob");
        for name in ["f", "g"] {
            alice.put(name, b"mine").await;
        }
        alice.mkdir("d").await;
        for wish in [Wish::file("f"), Wish::dir("d")] {
            alice.protect(&wish, "D:P(A;;FA;;;ME)").await;
        }
        let all = [".", "..", "d", "f", "g"];
        assert_eq!(listing::names(&bob, "", "*").await.unwrap(), all, "by default everything is listed");
        let mut share = alice.tree.share.clone().unwrap();
        share.rules.hides_unreadable = true;
        let session = bob.another_session("bob");
        let hiding = Bench { tree: session.connect(Some(share), Right::Write, 10).unwrap(), session, ..bob };
        assert_eq!(listing::names(&hiding, "", "*").await.unwrap(), [".", "..", "g"]);
        assert_eq!(listing::names(&hiding, "", "?").await.unwrap(), [".", "g"]);
        assert_eq!(status(listing::names(&hiding, "", "f").await), NtStatus::NO_SUCH_FILE);
        // A user who knows the name gets the same answer as before.
        assert!(!hiding.may("f", AccessMask::FILE_READ_DATA).await);
    });
}

/// A reparse point that Linux can store only in place of the file, which loses its descriptor.
#[test]
fn only_who_may_change_a_descriptor_makes_its_file_a_link() {
    use super::control::{control, link_to, request};
    use weft_wire::smb2::ioctl::CtlCode;
    run(async |alice| {
        let bob = alice.as_user("bob");
        let code = CtlCode::SET_REPARSE_POINT;
        let back = [&0xA000_000Cu32.to_le_bytes()[..], &[0; 4]].concat();
        // Bob may only add files to the folder, and write to the file.
        alice.mkdir("d").await;
        alice.protect(&Wish::dir("d"), "D:P(A;;FA;;;ME)(A;;0x100002;;;WD)").await;
        alice.put("f", b"").await;
        alice.protect(&Wish::file("f"), "D:P(A;;FA;;;ME)(A;;0x100002;;;WD)").await;
        for wish in [Wish::dir("d"), Wish::file("f")] {
            let path = wish.path;
            let file = bob.open(&Wish { access: AccessMask::FILE_WRITE_DATA, ..wish }).await.unwrap();
            let made = control(&bob, &request(code, file, link_to("x", 1))).await;
            assert_eq!(status(made), NtStatus::ACCESS_DENIED, "{path}");
            bob.close(file).await.unwrap();
            assert!(!bob.may(path, AccessMask::FILE_READ_DATA).await, "{path}");
        }
        // The owner may, also without asking for WRITE_DAC.
        let file = alice.open(&Wish { access: AccessMask::FILE_WRITE_DATA, ..Wish::dir("d") }).await.unwrap();
        control(&alice, &request(code, file, link_to("x", 1))).await.unwrap();
        control(&alice, &request(CtlCode::DELETE_REPARSE_POINT, file, back.clone())).await.unwrap();
        alice.close(file).await.unwrap();
    });
}

#[test]
fn what_was_a_link_inherits_again() {
    use super::control::{control, link_to, request};
    use weft_wire::smb2::ioctl::CtlCode;
    run(async |alice| {
        let bob = alice.as_user("bob");
        let back = [&0xA000_000Cu32.to_le_bytes()[..], &[0; 4]].concat();
        alice.mkdir("d").await;
        alice.protect(&Wish::dir("d"), "D:P(A;OICI;FA;;;ME)(A;OICI;0x1200a9;;;WD)").await;
        for wish in [Wish::file("d\\f"), Wish::dir("d\\e")] {
            let path = wish.path;
            let make = Wish { disposition: CreateDisposition::Create, ..wish };
            let file = alice.open(&make).await.unwrap();
            let before = alice.shown(file).await.unwrap();
            control(&alice, &request(CtlCode::SET_REPARSE_POINT, file, link_to("x", 1))).await.unwrap();
            alice.close(file).await.unwrap();
            // Somebody who may add nothing to the directory makes no file in it, and leads the link nowhere else.
            let options = CreateOptions::OPEN_REPARSE_POINT;
            let access = AccessMask::FILE_WRITE_ATTRIBUTES;
            let link = bob.open(&Wish { options, access, ..Wish::file(path) }).await.unwrap();
            let refused = control(&bob, &request(CtlCode::DELETE_REPARSE_POINT, link, back.clone())).await;
            assert_eq!(status(refused), NtStatus::ACCESS_DENIED, "{path}");
            let refused = control(&bob, &request(CtlCode::SET_REPARSE_POINT, link, link_to("y", 1))).await;
            assert_eq!(status(refused), NtStatus::ACCESS_DENIED, "{path}");
            bob.close(link).await.unwrap();
            let file = alice.open(&Wish { options, ..Wish::file(path) }).await.unwrap();
            control(&alice, &request(CtlCode::SET_REPARSE_POINT, file, link_to("y", 1))).await.unwrap();
            control(&alice, &request(CtlCode::DELETE_REPARSE_POINT, file, back.clone())).await.unwrap();
            assert_eq!(alice.shown(file).await.unwrap(), before, "{path}");
            alice.close(file).await.unwrap();
            assert!(bob.may(path, AccessMask::FILE_READ_DATA).await, "{path}");
            assert!(!bob.may(path, AccessMask::FILE_WRITE_DATA).await, "{path}");
        }
    });
}
