"""The table of functions for the tool-calling tasks: kinds of parameters, verbs, domains.

`DOMAINS` lists each domain with its verbs, and below it each noun with the kinds of its required parameters.
A verb and a noun make a function; the verb may add one optional parameter with a default.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from hermes.core import JSON
from hermes.envs.tasks.vocabulary import CITIES, COLOURS, PEOPLE, SUBJECTS, THINGS

Values = Callable[[random.Random], JSON]


@dataclass(frozen=True, slots=True)
class ParameterKind:
    """A kind of parameter: its declaration, its wording in a request, and its values."""

    type: str
    description: str
    phrase: str
    """Wording in a request; {} is the value. For a boolean: the wording for true."""
    values: Values
    """Draws a value."""
    options: tuple[str, ...] = ()
    """The allowed values of an enumeration."""


@dataclass(frozen=True, slots=True)
class OptionalParameter:
    kind: str
    default: JSON


@dataclass(frozen=True, slots=True)
class Verb:
    phrase: str
    optional: OptionalParameter | None = None


def _whole(low: int, high: int) -> Values:
    return lambda rng: rng.randint(low, high)


def _amount(low: int, high: int) -> Values:
    return lambda rng: rng.randint(low * 4, high * 4) / 4


def _of(values: tuple[str, ...] | list[str]) -> Values:
    return lambda rng: rng.choice(values)


def _several(values: tuple[str, ...] | list[str]) -> Values:
    return lambda rng: rng.sample(values, rng.randint(2, 3))


def _options(type_: str, description: str, phrase: str, options: str) -> ParameterKind:
    allowed = tuple(options.split())
    return ParameterKind(type_, description, phrase, _of(allowed), allowed)


def _date(rng: random.Random) -> str:
    return f"{rng.randint(2027, 2031)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def _time(rng: random.Random) -> str:
    return f"{rng.randint(6, 22):02}:{rng.choice((0, 15, 30, 45)):02}"


def _code(letters: str) -> Values:
    return lambda rng: f"{letters}-{rng.randint(1000, 9999)}"


def _true(rng: random.Random) -> bool:
    return True


KINDS = {
    "city": ParameterKind("string", "Name of the city.", "in {}", _of(CITIES)),
    "origin": ParameterKind("string", "City of departure.", "from {}", _of(CITIES)),
    "destination": ParameterKind("string", "City of arrival.", "to {}", _of(CITIES)),
    "date": ParameterKind("string", "Day, as YYYY-MM-DD.", "on {}", _date),
    "deadline": ParameterKind("string", "Last day, as YYYY-MM-DD.", "due {}", _date),
    "time": ParameterKind("string", "Time of day, as HH:MM.", "at {}", _time),
    "person": ParameterKind("string", "Full name of the person.", "for {}", _of(PEOPLE)),
    "author": ParameterKind("string", "Full name of the author.", "by {}", _of(PEOPLE)),
    "recipient": ParameterKind("string", "Full name of the recipient.", "to {}", _of(PEOPLE)),
    "guests": ParameterKind("array", "Full names of the guests.", "with the guests {}", _several(PEOPLE)),
    "nights": ParameterKind("integer", "Number of nights.", "for {} nights", _whole(2, 21)),
    "days": ParameterKind("integer", "Number of days.", "for {} days", _whole(2, 30)),
    "minutes": ParameterKind("integer", "Length in minutes.", "for {} minutes", _whole(5, 180)),
    "hours": ParameterKind("integer", "Number of hours.", "for {} hours", _whole(2, 48)),
    "seats": ParameterKind("integer", "Number of seats.", "with {} seats", _whole(2, 12)),
    "copies": ParameterKind("integer", "Number of copies.", "in {} copies", _whole(2, 90)),
    "quantity": ParameterKind("integer", "How many.", "with a quantity of {}", _whole(2, 500)),
    "floor": ParameterKind("integer", "Number of the floor.", "on floor {}", _whole(1, 40)),
    "year": ParameterKind("integer", "Year.", "of the year {}", _whole(1950, 2026)),
    "budget": ParameterKind("number", "Budget in euros.", "with a budget of {} euros", _amount(20, 5000)),
    "amount": ParameterKind("number", "Amount in euros.", "over {} euros", _amount(5, 9000)),
    "weight_kg": ParameterKind("number", "Weight in kilograms.", "weighing {} kg", _amount(1, 90)),
    "distance_km": ParameterKind("number", "Distance in kilometres.", "over {} km", _amount(1, 300)),
    "temperature": ParameterKind(
        "number", "Temperature in degrees Celsius.", "at {} degrees", _amount(5, 40)
    ),
    "product": ParameterKind("string", "Name of the product.", "of the product {}", _of(THINGS)),
    "colour": ParameterKind("string", "Colour.", "in {}", _of(COLOURS)),
    "subject": ParameterKind("string", "What it is about.", "about {}", _of(SUBJECTS)),
    "tags": ParameterKind("array", "Labels.", "with the tags {}", _several(SUBJECTS)),
    "order_id": ParameterKind("string", "Number of the order.", "with order number {}", _code("ORD")),
    "account": ParameterKind("string", "Number of the account.", "on account {}", _code("ACC")),
    "device": ParameterKind("string", "Name of the device.", "on device {}", _code("DEV")),
    "vehicle": ParameterKind("string", "Number plate.", "with plate {}", _code("CAR")),
    "patient": ParameterKind("string", "Number of the patient.", "for patient {}", _code("PAT")),
    "room": ParameterKind("string", "Number of the room.", "in room {}", _code("RM")),
    "file_name": ParameterKind("string", "Name of the file.", "named {}", _code("DOC")),
    "cabin": _options("string", "Class of travel.", "in {} class", "economy business first"),
    "priority": _options("string", "Priority.", "with {} priority", "low medium high"),
    "size": _options("string", "Size.", "in size {}", "small medium large"),
    "language": _options("string", "Language.", "in {}", "English French German Spanish Italian"),
    "level": _options("string", "Level.", "at {} level", "beginner intermediate advanced"),
    "format": _options("string", "File format.", "as {}", "pdf csv html json"),
    "limit": ParameterKind("integer", "Most results to return.", "showing at most {} results", _whole(2, 9)),
    "insured": ParameterKind("boolean", "Whether to add insurance.", "with insurance", _true),
    "notify": ParameterKind(
        "boolean", "Whether to send a message about it.", "and send a message about it", _true
    ),
    "dry_run": ParameterKind("boolean", "Whether only to try it out.", "as a dry run", _true),
    "detailed": ParameterKind("boolean", "Whether to include all details.", "with all details", _true),
    "refund": ParameterKind("boolean", "Whether to pay back.", "with a refund", _true),
    "repeat": ParameterKind("integer", "How many times in a row.", "repeated {} times", _whole(2, 8)),
    "reminder_minutes": ParameterKind(
        "integer", "Minutes of warning.", "with {} minutes of warning", _whole(5, 90)
    ),
}

VERBS = {
    "book": Verb("book", OptionalParameter("insured", False)),
    "cancel": Verb("cancel", OptionalParameter("refund", False)),
    "find": Verb("find", OptionalParameter("limit", 10)),
    "price": Verb("tell me the price of", OptionalParameter("detailed", False)),
    "order": Verb("order", OptionalParameter("insured", False)),
    "track": Verb("track", OptionalParameter("detailed", False)),
    "return": Verb("send back", OptionalParameter("refund", True)),
    "schedule": Verb("schedule", OptionalParameter("reminder_minutes", 15)),
    "move": Verb("reschedule", OptionalParameter("notify", False)),
    "create": Verb("create", OptionalParameter("notify", False)),
    "delete": Verb("delete", OptionalParameter("dry_run", False)),
    "update": Verb("update"),
    "list": Verb("list", OptionalParameter("limit", 20)),
    "start": Verb("start", OptionalParameter("repeat", 1)),
    "stop": Verb("stop", OptionalParameter("notify", False)),
    "check": Verb("check", OptionalParameter("detailed", True)),
    "send": Verb("send", OptionalParameter("notify", True)),
    "print": Verb("print", OptionalParameter("dry_run", False)),
    "report": Verb("report", OptionalParameter("notify", True)),
    "reserve": Verb("reserve", OptionalParameter("reminder_minutes", 30)),
    "compare": Verb("compare", OptionalParameter("limit", 5)),
    "archive": Verb("archive", OptionalParameter("dry_run", False)),
    "approve": Verb("approve", OptionalParameter("notify", True)),
    "estimate": Verb("estimate", OptionalParameter("detailed", False)),
}

DOMAINS = """
travel: book cancel find price
    hotel_room: city date nights; flight: origin destination date cabin;
    train_ticket: origin destination date time; rental_car: city date days
dining: reserve cancel find move
    table: city date time seats; catering: city date guests; cooking_class: city date level;
    wine_tasting: city date seats
shopping: order track return compare
    gift_basket: recipient colour; spare_part: product quantity; garment: product colour size;
    sample_box: order_id size
calendar: schedule move cancel list
    meeting: person date time; interview: person date minutes; phone_call: person date time;
    workshop: subject date hours
library: reserve find archive list
    book_copy: author subject; magazine: subject year; audio_book: author language; map_sheet: city year
finance: send approve list estimate
    bank_transfer: recipient amount account; invoice: account amount deadline; loan: amount year;
    standing_order: recipient amount
health: book move cancel check
    blood_test: patient date; vaccination: patient date city; dental_visit: patient date time;
    chest_scan: patient room date
home: start stop check schedule
    heating: room temperature; washing_machine: device minutes; sprinkler: device minutes;
    vacuum_robot: room time
logistics: track send estimate cancel
    parcel: origin destination weight_kg; pallet: origin destination quantity; courier: city time weight_kg;
    container: order_id destination
education: book find create list
    language_course: city language level; exam: subject date room; tutor: subject level;
    study_group: subject guests
music: start find create stop
    playlist: subject minutes; concert_stream: author date; radio_station: city language;
    album: author year
documents: create print archive delete
    contract: file_name person; summary: file_name language; letter: recipient subject;
    spreadsheet: file_name format
fitness: start schedule list update
    run: distance_km minutes; swim: minutes level; bike_tour: origin distance_km;
    training_plan: person level days
vehicles: book check report find
    car_service: vehicle date city; tyre_change: vehicle size; charging_station: city vehicle;
    parking_spot: city hours
weather: check compare report list
    forecast: city date; storm_warning: city days; snow_depth: city year; sea_temperature: city date
events: create cancel find update
    festival: city date subject; trade_fair: city date; wedding: guests date city;
    exhibition: subject city days
support: create update delete list
    ticket: subject priority; complaint: order_id subject; callback: person time;
    feature_request: subject tags
office: reserve report order check
    meeting_room: floor date time; printer: floor device; desk: floor days; projector: room hours
garden: order schedule check start
    tree_planting: city quantity date; lawn_cutting: city minutes; greenhouse: temperature device;
    compost_delivery: city weight_kg
photography: book print archive find
    portrait_session: person date city; photo_album: subject copies; poster: colour size copies;
    camera_kit: product days
real_estate: find estimate report compare
    apartment: city budget floor; office_space: city seats budget; garage: city vehicle;
    garden_plot: city year
news: find send archive list
    article: subject author date; newsletter: subject recipient; press_photo: subject year;
    interview_text: author language
science: start report create stop
    experiment: subject hours temperature; sample_analysis: file_name weight_kg; sensor_log: device days;
    survey: subject city quantity
energy: check compare estimate report
    power_usage: account days; solar_output: city days; meter_reading: account date; grid_outage: city time
pets: book find move cancel
    grooming: person date size; dog_walker: city hours; cat_sitter: city nights;
    vet_visit: person date time
games: create start list delete
    chess_match: person level; quiz: subject minutes; tournament: city date seats; puzzle: size level
translation: order check price cancel
    brochure: language copies; subtitle_track: file_name language minutes; manual: product language;
    certificate: person language
"""
