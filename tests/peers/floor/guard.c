/*
 * Signing and encryption as SMB 3.1.1 does them ([MS-SMB2] 2.2.41, 3.1.4.1, 3.1.4.3), with OpenSSL's libcrypto: AES-128-GMAC or
 * AES-128-CMAC over header and payload, or AES-128-GCM of both behind a transform header. The key is known to both ends.
 */
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <string.h>
#include <stdlib.h>

#include "floor.h"

enum { TAG = 16, NONCE = 12, TRANSFORM = 52 };
/* Where a header has its tag and its nonce: the SMB2 header its signature and message id, the transform header both. */
enum { SIGNED_TAG = PREFIX + 48, SIGNED_NONCE = PREFIX + 24, SEALED_TAG = PREFIX + 4, SEALED_NONCE = PREFIX + 20 };

struct guard {
	enum protection kind;
	EVP_CIPHER_CTX *seal, *open;
	EVP_MAC_CTX *mac;
	EVP_CIPHER_CTX *now; /* seal or open, of the message that was begun */
	uint64_t messages;
};

static const unsigned char KEY[16] = "key of the floor";

static void want(int worked)
{
	if (worked != 1)
		fail("libcrypto");
}

struct guard *guard_new(enum protection kind)
{
	struct guard *guard = calloc(1, sizeof *guard);
	guard->kind = kind;
	if (kind == CMAC) {
		EVP_MAC *cmac = EVP_MAC_fetch(NULL, "CMAC", NULL);
		OSSL_PARAM cipher[] = { OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_CIPHER, (char *)"AES-128-CBC", 0),
					OSSL_PARAM_construct_end() };
		guard->mac = EVP_MAC_CTX_new(cmac);
		want(EVP_MAC_init(guard->mac, KEY, sizeof KEY, cipher));
		EVP_MAC_free(cmac);
	} else {
		guard->seal = EVP_CIPHER_CTX_new();
		guard->open = EVP_CIPHER_CTX_new();
		want(EVP_EncryptInit_ex(guard->seal, EVP_aes_128_gcm(), NULL, KEY, NULL));
		want(EVP_DecryptInit_ex(guard->open, EVP_aes_128_gcm(), NULL, KEY, NULL));
	}
	return guard;
}

void guard_free(struct guard *guard)
{
	EVP_CIPHER_CTX_free(guard->seal);
	EVP_CIPHER_CTX_free(guard->open);
	EVP_MAC_CTX_free(guard->mac);
	free(guard);
}

/* Bytes that are covered by the tag, but not encrypted. */
static void cover(struct guard *guard, const char *from, size_t size)
{
	int done;
	if (guard->mac)
		want(EVP_MAC_update(guard->mac, (const void *)from, size));
	else
		want(EVP_CipherUpdate(guard->now, NULL, &done, (const void *)from, size));
}

void guard_begin(struct guard *guard, char *frame, size_t header, bool is_opening)
{
	bool is_sealed = guard->kind == GCM;
	unsigned char nonce[NONCE] = { 0 };
	char *at = frame + (is_sealed ? SEALED_NONCE : SIGNED_NONCE);
	if (!is_opening) {
		guard->messages++;
		memcpy(at, &guard->messages, sizeof guard->messages);
	}
	memcpy(nonce, at, sizeof guard->messages);
	if (guard->mac) {
		/* The key stays. */
		want(EVP_MAC_init(guard->mac, NULL, 0, NULL));
	} else {
		/* Whoever checks a MAC computes it anew. */
		guard->now = is_sealed && is_opening ? guard->open : guard->seal;
		want(EVP_CipherInit_ex(guard->now, NULL, NULL, NULL, nonce, -1));
	}
	if (is_sealed) {
		cover(guard, at, TRANSFORM - (SEALED_NONCE - PREFIX));
		char *rest = frame + PREFIX + TRANSFORM;
		guard_add(guard, rest, rest, header - PREFIX - TRANSFORM);
	} else {
		/* The signature counts as zeros. */
		static const char zeros[TAG];
		cover(guard, frame + PREFIX, SIGNED_TAG - PREFIX);
		cover(guard, zeros, TAG);
		cover(guard, frame + SIGNED_TAG + TAG, header - SIGNED_TAG - TAG);
	}
}

void guard_add(struct guard *guard, char *to, const char *from, size_t size)
{
	int done;
	if (guard->kind == GCM)
		want(EVP_CipherUpdate(guard->now, (void *)to, &done, (const void *)from, size));
	else
		cover(guard, from, size);
}

/* What the message's tag is, when this end computes it. */
static void tag_of(struct guard *guard, unsigned char tag[TAG])
{
	unsigned char none[TAG];
	size_t size;
	int done;
	if (guard->mac) {
		want(EVP_MAC_final(guard->mac, tag, &size, TAG));
		return;
	}
	want(EVP_EncryptFinal_ex(guard->now, none, &done));
	want(EVP_CIPHER_CTX_ctrl(guard->now, EVP_CTRL_AEAD_GET_TAG, TAG, tag));
}

void guard_seal(struct guard *guard, char *frame)
{
	tag_of(guard, (unsigned char *)frame + (guard->kind == GCM ? SEALED_TAG : SIGNED_TAG));
}

bool guard_holds(struct guard *guard, char *frame)
{
	unsigned char tag[TAG];
	int done;
	if (guard->kind == GCM) {
		want(EVP_CIPHER_CTX_ctrl(guard->now, EVP_CTRL_AEAD_SET_TAG, TAG, frame + SEALED_TAG));
		return EVP_DecryptFinal_ex(guard->now, tag, &done) == 1;
	}
	tag_of(guard, tag);
	return memcmp(tag, frame + SIGNED_TAG, TAG) == 0;
}
