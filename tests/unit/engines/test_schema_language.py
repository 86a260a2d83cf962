"""The language of a schema's grammar is that of JSON Schema, for small schemas and documents."""

import itertools
import json

import jsonschema
from harness.tables import rows
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st
from languages import language, takes

from specmesh.engines.schema_faults import ON_ONE_LINE, matcher_of

NAMES = st.sampled_from("abcd")
FORMATS = jsonschema.Draft202012Validator.FORMAT_CHECKER


def grammar(schema):
    """Return the grammar of a schema, or None if it is refused."""
    return language("json_schema", json.dumps(schema))


def plain(schema):
    """Return True if llguidance takes a schema as it is."""
    rule = f"start: %json {json.dumps(schema | {'x-guidance': ON_ONE_LINE})}"
    return not matcher_of(rule).is_error()


def orders(value):
    """Yield a document with the names of its objects in each order."""
    if isinstance(value, dict):
        for names in itertools.permutations(value):
            for inner in itertools.product(*(orders(value[name]) for name in names)):
                yield dict(zip(names, inner, strict=True))
    elif isinstance(value, list):
        yield from map(list, itertools.product(*map(orders, value)))
    else:
        yield value


def valid(schema, document):
    try:
        return jsonschema.Draft202012Validator(schema, format_checker=FORMATS).is_valid(document)
    except RecursionError:  # a subschema that refers to itself for the same place
        return reject()


# --- the subschemas of a place, by their definition and without haste


def values_of(subschemas, keyword):
    return [schema[keyword] for schema in subschemas if keyword in schema]


def here(root, nodes):
    """Return all subschemas that hold at a place, or are compared there."""
    found = []
    for node in nodes:
        if not isinstance(node, dict) or any(node is known for known in found):
            continue
        found.append(node)
        for keyword in ("allOf", "anyOf", "oneOf"):
            nodes += node.get(keyword, [])
        nodes += [node[keyword] for keyword in ("if", "then", "else", "not") if keyword in node]
        if "$ref" in node:
            nodes.append(root["$defs"][node["$ref"].removeprefix("#/$defs/")])
    return found


def properties_of(subschemas, name):
    """Return the subschemas of a property."""
    return values_of(values_of(subschemas, "properties"), name)


def declared(root, nodes, document):
    """Return True if some subschema of each place declares each name there."""
    found = here(root, list(nodes))
    if isinstance(document, list):
        items = values_of(found, "items")
        return all(declared(root, items, inner) for inner in document)
    if not isinstance(document, dict):
        return True
    for name, inner in document.items():
        own = properties_of(found, name)
        without = [schema for schema in found if name not in schema.get("properties", {})]
        others = values_of(without, "additionalProperties")
        if not own or not declared(root, own + others, inner):
            return False
    return True


# --- schemas and documents

SCALARS = st.sampled_from(
    rows("""
    {"type": "integer"} {"type": "string"} {"type": ["integer", "null"]} {"const": 1}
    {"enum": ["x", 2, null]} {"type": "boolean"} {"type": "integer", "minimum": 1}
    {"type": "string", "minLength": 1} {} true
    """)
)


@st.composite
def objects(draw, inner):
    """A schema of an object, also one whose parts contradict or repeat each other."""
    schema = {}
    if draw(st.booleans()):
        schema["type"] = "object"
    if draw(st.integers(0, 4)):
        schema["properties"] = draw(st.dictionaries(NAMES, inner, min_size=1, max_size=3))
    if draw(st.integers(0, 2)) == 0:
        schema["required"] = draw(st.lists(NAMES, unique=True, max_size=2))
    if draw(st.integers(0, 4)) == 0:
        schema["additionalProperties"] = draw(st.one_of(st.booleans(), inner))
    for keyword in ("allOf", "anyOf"):
        if draw(st.integers(0, 3)) == 0:
            schema[keyword] = draw(st.lists(inner, min_size=1, max_size=2))
    if draw(st.integers(0, 4)) == 0:
        schema["$ref"] = f"#/$defs/{draw(st.sampled_from('pq'))}"
    if draw(st.integers(0, 6)) == 0:
        schema["minProperties"] = draw(st.integers(0, 2))
    return schema


ARRAYS = st.fixed_dictionaries({"type": st.just("array"), "items": SCALARS})
ANY = st.recursive(st.one_of(SCALARS, ARRAYS), objects, max_leaves=6)
SCHEMAS = st.builds(
    lambda root, p, q: root | {"$defs": {"p": p, "q": q}}, objects(ANY), objects(SCALARS), ANY
)
LEAVES = st.sampled_from([0, 1, 2, -3, "", "x", None, True, 0.5, {}, []])


@st.composite
def documents(draw, root, nodes, depth=0):
    """Make a document that may fit: most names are declared, most required ones are present."""
    found = here(root, list(nodes))
    names = sorted(set().union(*values_of(found, "properties")))
    required = sorted(set().union(*values_of(found, "required")))
    items = values_of(found, "items")
    if items and draw(st.integers(0, 3)):
        return draw(st.lists(documents(root, items, depth + 1), max_size=2))
    if not names or depth > 3 or draw(st.integers(0, 9)) == 0:
        return draw(LEAVES)
    chosen = dict.fromkeys(name for name in names if draw(st.booleans()))
    if draw(st.integers(0, 9)):
        chosen |= dict.fromkeys(required)
    if draw(st.integers(0, 9)) == 0:
        chosen["e"] = None
    document = {}
    for name in chosen:
        own = properties_of(found, name)
        document[name] = draw(documents(root, own, depth + 1))
    return document


slow = settings(
    max_examples=settings().max_examples // 2,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@slow
@given(SCHEMAS, st.data())
def test_a_document_is_taken_that_fits_and_whose_names_are_declared(schema, data):
    """No other document is taken, in any order of names."""
    matcher = grammar(schema)
    assume(matcher is not None)
    for _ in range(12):
        document = data.draw(documents(schema, [schema]))
        fits = valid(schema, document)
        taken = [one for one in orders(document) if takes(matcher, json.dumps(one))]
        assert taken or not fits or not declared(schema, [schema], document), document
        assert fits or not taken, document


@slow
@given(SCHEMAS)
def test_nothing_is_refused_for_being_closed(schema):
    assert grammar(schema) is not None or not plain(schema)
