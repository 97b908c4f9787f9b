"""Rows from translated manual pages: what counts as a paragraph, and that no page is on both sides."""

import csv
import gzip
import zlib

import manual_pages
import pytest

PAGE = r""".\" a comment
.TH LS 1 "2022" "GNU"
.SH BEZEICHNUNG
.PP
Auflistung von Informationen \fBüber\fP die \fI\,DATEIen\/\fP (\-\-alle)
\[u2026]im aktuellen Verzeichnis\s-2, sortiert\s0. \" nicht zu lesen
.TP
\fB\-a\fP
.nf
int main(void) { return this_is_no_language_at_all(); }
.fi
.PP
The entries are sorted and this is not translated, which should be left out.
.PP
このプログラムは ファイルの内容をリスト表示する
"""


def test_paragraphs_are_running_text_without_escapes():
    german, english, japanese = manual_pages.paragraphs(PAGE)
    assert german == "Auflistung von Informationen über die DATEIen (--alle) im aktuellen Verzeichnis, sortiert."
    assert manual_pages.is_english(english)
    assert not manual_pages.is_english(german)
    assert japanese == "このプログラムは ファイルの内容をリスト表示する"


def page(folder, language, name, text):
    path = folder / language / "man1" / f"{name}.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))


@pytest.fixture
def man(tmp_path):
    for number in range(30):
        for language, word in (("de", "wie eine Übersetzung"), ("sv", "som en översättning")):
            text = (
                f".SH A\n{word} {number} {word} på und {language}, {word}\n.PP\nallen gemeinsam og felles {'x' * 40}\n"
            )
            page(tmp_path, language, f"page{number}.1", text)
    page(tmp_path, "fi", "page0.1", f".SH A\n{'vain yksi rivi ' * 4}\n")
    (tmp_path / "de" / "man1" / "torn.1.gz").write_bytes(b"\x1f\x8bno page")
    return tmp_path


def test_rows(man, capsys):
    found = manual_pages.rows(man, most=20, least=5)
    assert "torn.1.gz: left out" in capsys.readouterr().err
    assert {language for language, _ in found[False]} == {"de", "sv"}, "one of a row alone is left out"
    numbers = {tested: {text.split()[3] for _, text in found[tested]} for tested in found}
    assert numbers[True].isdisjoint(numbers[False]), "a page is on one side in all languages"
    assert all(manual_pages.is_tested(f"page{number}.1") for number in numbers[True])
    assert not any("gemeinsam" in text for part in found.values() for _, text in part)
    assert len(found[False]) == 40
    assert 0 < len(found[True]) <= 8
    assert manual_pages.rows(man, most=20, least=5) == found


def test_rows_of_several_languages():
    rows = [(language, f"{language} {n} " + "\u3042" * 40) for n in range(50) for language in ("de", "ja", "sv")]
    rows.sort(key=lambda row: zlib.crc32(row[1].encode()))
    found = manual_pages.mixed(rows)
    assert len(found) == len(rows)
    assert {len(label.split("|")) for label, _ in found} == {1, 2, 3}
    for label, text in found:
        assert {word for word in text.split() if word in ("de", "ja", "sv")} == {*label.split("|")}
        assert len(text.encode()) <= 3 * manual_pages.PIECE + 2


def test_files(man, tmp_path, capsys):
    out = tmp_path / "out"
    manual_pages.main(["--man", str(man), "--out", str(out), "--most", "10", "--least", "5"])
    assert "train.csv: 20 rows: de 10, sv 10" in capsys.readouterr().out
    with open(out / "test.csv", newline="", encoding="utf-8") as file:
        head, *rest = csv.reader(file)
    assert head == ["label", "text"]
    assert {row[0] for row in rest} == {"de", "sv"}
    with pytest.raises(SystemExit):
        manual_pages.main(["--man", str(tmp_path / "none"), "--out", str(out)])
    assert "holds no translated pages" in capsys.readouterr().err
