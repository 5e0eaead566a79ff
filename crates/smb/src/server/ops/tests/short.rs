//! 8.3 names: shown, opened by, listed, and tunnelled.

use weft_store::backend::short_name;
use weft_wire::smb2::fscc::FileClass;
use weft_wire::smb2::fscc::file::Name;

use super::*;

const LONG: &str = "A name that is too long.text";

fn short() -> String {
    short_name(LONG.as_bytes()).unwrap()
}

async fn alternate(b: &Bench, path: &str) -> Result<String, NtStatus> {
    let file = b.open(&Wish::file(path)).await?;
    let name = info::file_info(b, file, FileClass::ALTERNATE_NAME).await;
    b.close(file).await.unwrap();
    Ok(Name::parse(&name?).unwrap().name)
}

#[test]
fn a_long_name_has_a_short_one_beside_it() {
    run(async |b| {
        b.put(LONG, b"content").await;
        b.mkdir("a directory").await;
        let dir = short_name(b"a directory").unwrap();
        b.put(&format!("{dir}\\Plain.txt"), b"x").await;
        assert_eq!(alternate(&b, LONG).await.unwrap(), short());
        assert_eq!(alternate(&b, &short().to_lowercase()).await.unwrap(), short(), "opened by it");
        assert_eq!(alternate(&b, "a directory\\plain.TXT").await.unwrap(), "Plain.txt", "is one itself");
        let entries = listing::entries(&b, "", "*").await;
        let shown: Vec<_> = entries.iter().map(|e| (e.name.as_str(), e.short_name.as_str())).collect();
        assert_eq!(shown, [(".", ""), ("..", ""), (LONG, &short()), ("a directory", &dir)]);
        // Listing it by its 8.3 name finds the file under its long name.
        assert_eq!(listing::names(&b, "", &short()).await.unwrap(), [LONG]);
        assert_eq!(listing::names(&b, &dir, "*").await.unwrap(), [".", "..", "Plain.txt"]);
        // The 8.3 name has no other effect.
        let short = short();
        let make = Wish { disposition: CreateDisposition::Create, ..Wish::file(&short) };
        assert_eq!(status(b.open(&make).await), NtStatus::OBJECT_NAME_COLLISION);
    });
}

#[test]
fn what_is_removed_by_its_short_name_and_made_again_keeps_its_long_one() {
    run(async |b| {
        b.put(LONG, b"old").await;
        let short = short();
        let remove = Wish {
            options: CreateOptions::NON_DIRECTORY_FILE | CreateOptions::DELETE_ON_CLOSE,
            ..Wish::file(&short)
        };
        let file = b.open(&remove).await.unwrap();
        b.close(file).await.unwrap();
        assert!(!b.exists(LONG).await);
        b.put(&short, b"new").await;
        assert_eq!(listing::names(&b, "", "*").await.unwrap(), [".", "..", LONG]);
        // Removed by its long name, it is forgotten.
        let file = b.open(&Wish { path: LONG, ..remove }).await.unwrap();
        b.close(file).await.unwrap();
        b.put(&short, b"new").await;
        assert_eq!(listing::names(&b, "", "*").await.unwrap(), [".", "..", &short]);
    });
}
