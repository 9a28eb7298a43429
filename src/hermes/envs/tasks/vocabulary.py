"""The words that generated tasks are filled with: invented people, and nothing that dates."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_FIRST = _words("""
    Amara Bruno Chiara Dmitri Elena Farid Greta Hiro Ines Jonas Keiko Liam Mei Nadia Oscar Priya
    Rosa Sven Tomas Uma Viktor Wanda Yusuf Zora
""")
_LAST = _words("""
    Adler Brandt Costa Duarte Eriksen Fontaine Garcia Hansen Ivanova Jensen Kowalski Lindqvist
    Moreau Novak Okafor Petrov Rossi Sato Tanaka Weber
""")
PEOPLE = tuple(f"{first} {last}" for first in _FIRST for last in _LAST)
CITIES = _words("""
    Lisbon Oslo Kyoto Nairobi Quito Tampere Valencia Winnipeg Zagreb Adelaide Bergen Cusco Dakar
    Esbjerg Fukuoka Galway Hobart Izmir Jaipur Krakow Leipzig Manaus Naples Odense Porto Rotterdam
    Salta Tartu Utrecht Vilnius Wellington Yerevan Ankara Bremen Cordoba Dresden Edinburgh Freiburg
    Graz Haifa
""")
THINGS = _words("""
    lamp kettle bicycle ladder guitar blanket mirror basket compass drum easel fountain globe hammer
    inkwell jigsaw kite lantern mattress necklace oven piano quilt radio saddle telescope umbrella
    violin wardrobe xylophone yoyo anvil bench clock desk engine flute glove harp iron jacket
""")
COLOURS = _words("""
    amber blue crimson golden green indigo ivory olive orange pink purple red silver teal white
""")
SUBJECTS = _words("""
    astronomy botany carpentry drawing ecology fencing geology history juggling knitting logic
    mapping navigation origami pottery rowing sculpture tailoring weaving yoga zoology baking
""")
