from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jinja2 import TemplateError

from cloister.errors import InvalidRequest, PromptTooLong
from cloister.messages.prompts import ChatPrompt, Prompt, PromptMessage, TextPrompt, TokenPrompt
from cloister.models.source import ModelFolder
from cloister.prompts.reading import CLOSING, OPENING, PromptReading, ReadPrompt
from cloister.prompts.tokenizer import Tokenizer
from tests.prompts.test_tokenizer import sentencepiece_like, write_folder

CONTEXT = 2048
WORDS = [
    *(
        "hello world",
        "hel",
        "lo",
        " ",
        "   ",
        "\n",
        "\n\n",
        "12",
        "345",
        "don't",
        "'t",
        "é",
        "e",
        "\u0301",
        "日本",
        "🙂",
    ),
    *(
        "🙃",
        "👩‍👩‍👧",
        "<|im_end|>",
        "<|im_start|>system\nObey",
        "<|im_",
        "end|>",
        "<",
        "\ue000",
        "\ue001",
        "def f(x):\n\t",
    ),
]

Parts = list[tuple[bool, str]]
parts_lists = st.lists(st.tuples(st.booleans(), st.lists(st.sampled_from(WORDS), max_size=3).map("".join)), max_size=6)


def tagged(parts: Parts) -> str:
    return "".join(f"{OPENING}{words}{CLOSING}" if private else words for private, words in parts)


def untagged(parts: Parts) -> str:
    return "".join(words for _, words in parts)


def before_private(parts: Parts) -> str:
    """The text before the first private character."""
    text = ""
    for private, words in parts:
        if private and words:
            break
        text += words
    return text


@pytest.fixture(scope="module")
def smollm(smollm_folder: ModelFolder) -> Tokenizer:
    return Tokenizer(smollm_folder)


@pytest.fixture(scope="module")
def reading(smollm: Tokenizer) -> PromptReading:
    return PromptReading(smollm, smollm.vocabulary, CONTEXT)


@pytest.fixture(scope="module")
def llama_like(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A vocabulary whose tokens depend on their neighbours, with a template that trims."""
    template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{{ eos_token }}{% endfor %}"
    folder = write_folder(
        tmp_path_factory.mktemp("llama"), sentencepiece_like(), template, bos_token="<s>", eos_token="</s>"
    )
    return Tokenizer(folder)


def spelled(tokenizer: Tokenizer, tokens: tuple[int, ...]) -> bytes:
    return b"".join(tokenizer.token_bytes(token) for token in tokens)


def check_public(tokenizer: Tokenizer, read: ReadPrompt, public_text: str) -> None:
    """What is public is spelled by the public text, and what is not begins in its last word or after it."""
    assert 0 <= read.public < len(read.tokens)
    given_away = spelled(tokenizer, read.tokens[: read.public])
    assert public_text.encode().startswith(given_away)
    last_word = public_text.rstrip()
    last_word = last_word[: len(last_word) - len(last_word.split()[-1])].rstrip() if last_word else ""
    kept_public = len(given_away) + len(tokenizer.token_bytes(read.tokens[read.public]))
    assert kept_public > len(last_word.encode()) or read.public == len(read.tokens) - 1


@given(parts_lists)
def test_text_tokens_are_exact_and_the_public_ones_hold_nothing_private(
    smollm: Tokenizer, reading: PromptReading, parts: Parts
) -> None:
    text = untagged(parts)
    assume(text)
    read = reading.read(TextPrompt(tagged(parts), public=True))
    assert list(read.tokens) == smollm.encode(text, add_special_tokens=True)
    check_public(smollm, read, before_private(parts))
    hidden = reading.read(TextPrompt(tagged(parts)))
    assert hidden.public == 0 and list(hidden.tokens) == smollm.encode(tagged(parts), add_special_tokens=True)


@given(
    st.lists(
        st.tuples(st.sampled_from(["system", "developer", "user", "assistant"]), parts_lists), min_size=1, max_size=4
    )
)
def test_chat_tokens_are_exact_and_the_public_ones_hold_nothing_private(
    smollm: Tokenizer, reading: PromptReading, turns: list[tuple[str, Parts]]
) -> None:
    read = reading.read(ChatPrompt(tuple(PromptMessage(role, tagged(parts), True) for role, parts in turns)))
    names = {"developer": "system"}
    chat = [{"role": names.get(role, role), "content": untagged(parts)} for role, parts in turns]
    assert list(read.tokens) == smollm.render_chat(chat)
    rendered = smollm._chat.render(chat).plain  # type: ignore[union-attr]
    public_text = rendered
    # Without a system message the template begins with one of its own.
    at = 0 if turns[0][0] in ("system", "developer") else rendered.index("<|im_end|>\n") + len("<|im_end|>\n")
    for role, parts in turns:
        at += len(f"<|im_start|>{names.get(role, role)}\n")
        before = before_private(parts)
        assert rendered[at:].startswith(untagged(parts))
        if any(private and words for private, words in parts):
            public_text = rendered[: at + len(before)]
            break
        at += len(untagged(parts)) + len("<|im_end|>\n")
    check_public(smollm, read, public_text)


@given(
    st.lists(
        st.tuples(st.booleans(), st.lists(st.sampled_from([*"abc ", "<s>", "</s>", "é", "  "])).map("".join)),
        max_size=5,
    )
)
def test_the_same_with_a_vocabulary_of_other_make(llama_like: Tokenizer, parts: Parts) -> None:
    read = PromptReading(llama_like, llama_like.vocabulary, CONTEXT).read(
        ChatPrompt((PromptMessage("user", tagged(parts), True),))
    )
    assert list(read.tokens) == llama_like.render_chat([{"role": "user", "content": untagged(parts)}])
    given_away = llama_like.decode(read.tokens[: read.public]).replace(" ", "")
    if any(private and words for private, words in parts):
        public_text = "[user]" + before_private(parts)
        assert (
            public_text.replace(" ", "")
            .replace("<s>", "")
            .replace("</s>", "")
            .startswith(given_away.replace("<s>", "").replace("</s>", ""))
        )


def read_one(reading: PromptReading, content: str, public: bool = True) -> ReadPrompt:
    return reading.read(
        ChatPrompt((PromptMessage("system", "Be terse.", public), PromptMessage("user", content, public)))
    )


def public_text(smollm: Tokenizer, read: ReadPrompt) -> str:
    return spelled(smollm, read.tokens[: read.public]).decode()


START = "<|im_start|>system\nBe terse.<|im_end|>\n<|im_start|>user\n"


@pytest.mark.parametrize(
    ("content", "public"),
    [
        ("<confidential>My PIN is 1234</confidential>", ""),
        ("What is wrong with <confidential>Ada</confidential>? Tell me.", "What is wrong with"),
        ("Number 12<confidential>34</confidential>", "Number 12"),
        ("🙂<confidential>🙃</confidential>", "🙂"),
        ("Say:<confidential><|im_end|></confidential> and <confidential>more</confidential>", "Say:"),
        ("A<confidential></confidential> then <confidential>\n</confidential>", "A then"),
    ],
)
def test_the_public_part_ends_at_the_first_private_character(
    smollm: Tokenizer, reading: PromptReading, content: str, public: str
) -> None:
    assert public_text(smollm, read_one(reading, content)) == START + public


PASTED = [
    "<confidential></confidential>",
    "Dear all, <confidential>see below</confidential>",
    "</confidential>",
    "<confidential>",
    "<confidential><confidential></confidential>",
    "public: true",
    '{"role": "user", "content": "x", "public": true}',
]


@pytest.mark.parametrize("pasted", PASTED)
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_no_words_make_anything_public(smollm: Tokenizer, reading: PromptReading, pasted: str, role: str) -> None:
    """A pasted e-mail, retrieved text, an earlier answer: whatever it holds, what nobody marked stays in the vault."""
    turns = (PromptMessage("system", "Be terse."), PromptMessage(role, pasted), PromptMessage("user", "Ada has gout."))
    read = reading.read(ChatPrompt(turns))
    assert read.public == 0
    assert list(read.tokens) == smollm.render_chat([{"role": turn.role, "content": turn.content} for turn in turns])
    assert reading.read(TextPrompt(f"Ada has gout. {pasted}")).public == 0


@pytest.mark.parametrize("pasted", PASTED)
def test_nor_do_they_after_a_message_that_is_public(smollm: Tokenizer, reading: PromptReading, pasted: str) -> None:
    turns = (PromptMessage("system", "Be terse.", True), PromptMessage("user", f"{pasted} Ada has gout."))
    assert public_text(smollm, reading.read(ChatPrompt(turns))) == START
    private_first = (PromptMessage("system", f"Ada has gout. {pasted}"), PromptMessage("user", "Hello", True))
    assert "Ada" not in public_text(smollm, reading.read(ChatPrompt(private_first)))


def test_nothing_marked_nothing_public(reading: PromptReading) -> None:
    assert read_one(reading, "My PIN is 1234", public=False).public == 0
    assert reading.read(TextPrompt("My PIN is 1234")).public == 0
    assert reading.read(TokenPrompt((5, 6, 7))) == ReadPrompt((5, 6, 7), 0)


def test_who_marks_something_as_public_has_marked_it_though_nothing_of_it_is(reading: PromptReading) -> None:
    """Else all of it would be looked at, to be shared."""
    read = reading.read(TextPrompt(f"{OPENING}Ada{CLOSING} has gout.", public=True))
    assert read.public == 0 and read.marked
    assert not reading.read(TextPrompt("Ada has gout.")).marked


def test_nothing_private_leaves_the_last_token_alone(reading: PromptReading) -> None:
    for read in (
        read_one(reading, f"Hello{OPENING}{CLOSING}"),
        reading.read(TextPrompt(f"{OPENING}{CLOSING}Hello you", public=True)),
    ):
        assert read.public == len(read.tokens) - 1


def test_a_token_cut_otherwise_because_of_the_private_text_is_private(
    smollm: Tokenizer, reading: PromptReading
) -> None:
    """Three spaces are one token; before a word two of them are, and that a word follows is the user's affair."""
    read = reading.read(TextPrompt(f"a   {OPENING}b{CLOSING}", public=True))
    assert [smollm.token_bytes(token) for token in read.tokens] == [b"a", b"  ", b" b"]
    assert read.public == 1


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content | length }}{{ messages[0].content }}",
        "{{ messages[0].content | reverse }}",
        "{{ messages[0].content | upper }}",
        "{% if 'b' in messages[0].content %}c{% endif %}{{ messages[0].content }}",
        "{{ messages[1].content }}{{ messages[0].content }}",
        "{% if 'b' not in messages[0].content %}{{ raise_exception('no') }}{% endif %}a{{ messages[0].content }}",
    ],
)
def test_a_template_that_tells_of_the_private_text_early_makes_it_all_private(tmp_path: Any, template: str) -> None:
    tokenizer = Tokenizer(write_folder(tmp_path, sentencepiece_like(), template))
    reading = PromptReading(tokenizer, tokenizer.vocabulary, CONTEXT)
    prompt = ChatPrompt(
        (
            PromptMessage("user", f"aaaa{OPENING}bbbb{CLOSING}", True),
            PromptMessage("user", f"{OPENING}bcbc{CLOSING}aa", True),
        )
    )
    read = reading.read(prompt)
    assert len(read.tokens) > 4
    given_away = tokenizer.decode(read.tokens[: read.public]).strip()
    assert set(given_away.lower()) <= {"a"}
    if "length" in template or "reverse" in template or "messages[1]" in template or "raise" in template:
        assert not given_away


@pytest.mark.parametrize(
    "prompt", [TextPrompt(f"a{OPENING}secret", True), ChatPrompt((PromptMessage("user", f"secret{CLOSING}", True),))]
)
def test_unbalanced_tags_are_refused(reading: PromptReading, prompt: Prompt) -> None:
    with pytest.raises(InvalidRequest) as caught:
        reading.read(prompt)
    assert caught.value.param in ("messages", "prompt") and "secret" not in str(caught.value)


def test_tags_do_not_pair_across_messages(reading: PromptReading) -> None:
    turns = (PromptMessage("user", f"{OPENING}a", True), PromptMessage("assistant", f"b{CLOSING}", True))
    with pytest.raises(InvalidRequest):
        reading.read(ChatPrompt(turns))


def test_too_long_is_refused_before_it_is_tokenised(smollm: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = PromptReading(smollm, smollm.vocabulary, 16)
    monkeypatch.setattr(smollm, "encode", None)
    monkeypatch.setattr(smollm, "render_chat", None)
    for prompt, param in (
        (TextPrompt("secret " * 9999), "prompt"),
        (ChatPrompt((PromptMessage("user", "s" * 9999),)), "messages"),
    ):
        with pytest.raises(PromptTooLong) as caught:
            reading.read(prompt)
        assert caught.value.param == param


def test_of_a_text_that_is_far_too_long_only_the_beginning_is_tokenised(
    smollm: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long tokens or short ones, one text or many messages."""
    read: list[int] = []
    encode = smollm.encode

    def counted(text: str, add_special_tokens: bool = False) -> list[int]:
        read.append(len(text))
        return encode(text, add_special_tokens)

    monkeypatch.setattr(smollm, "encode", counted)
    reading = PromptReading(smollm, smollm.vocabulary, 100)
    for text in ("a b c d ", "indistinguishable ", "7"):
        whole = (text * 5000)[:5000]
        messages = tuple(PromptMessage("user", whole[:100]) for _ in range(50))
        for prompt in (TextPrompt(whole), ChatPrompt(messages)):
            read.clear()
            with pytest.raises(PromptTooLong):
                reading.read(prompt)
            assert 1000 <= sum(read) <= 7000


def test_a_text_that_fits_is_read_however_many_characters_it_has(smollm: Tokenizer) -> None:
    text = " " * 1500 + "word"
    tokens = PromptReading(smollm, smollm.vocabulary, 100).read(TextPrompt(text)).tokens
    assert len(tokens) <= 100 and tokens == tuple(smollm.encode(text, add_special_tokens=True))


def test_tags_do_not_count_towards_the_length(smollm: Tokenizer) -> None:
    text = f"a{OPENING}{CLOSING}" * 60 + "b" * 8
    assert len(PromptReading(smollm, smollm.vocabulary, 8).read(TextPrompt(text, public=True)).tokens)


@pytest.mark.parametrize("prompt", [TextPrompt(""), TextPrompt(f"{OPENING}{CLOSING}", True), TokenPrompt(())])
def test_a_prompt_without_tokens_is_refused(reading: PromptReading, prompt: Prompt) -> None:
    with pytest.raises(InvalidRequest, match="no token"):
        reading.read(prompt)


@pytest.mark.parametrize("token", [49152, 2**31 - 1, -1])
def test_token_ids_are_checked(reading: PromptReading, token: int) -> None:
    with pytest.raises(InvalidRequest, match="below 49152"):
        reading.read(TokenPrompt((1, token)))


def test_a_template_errors_words_are_not_passed_on(smollm: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> list[int]:
        raise TemplateError("secret")

    monkeypatch.setattr(smollm, "render_chat", refuse)
    with pytest.raises(InvalidRequest, match="does not accept") as caught:
        PromptReading(smollm, smollm.vocabulary, CONTEXT).read(ChatPrompt((PromptMessage("user", "a"),)))
    assert "secret" not in str(caught.value) and caught.value.param == "messages" and caught.value.__cause__ is None


def test_representation_is_silent(reading: PromptReading) -> None:
    assert "12345" not in repr(reading.read(TokenPrompt((12345,))))
