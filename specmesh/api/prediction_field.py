"""OpenAI's `prediction`: a text that the answer is expected to be close to."""

from dataclasses import replace

from specmesh.api.chat_messages import text_of
from specmesh.core.fields import Fields, is_object
from specmesh.core.requests import Request
from specmesh.errors import RequestError


def with_prediction(fields: Fields, request: Request) -> Request:
    """Return the request with the prediction of its body. Raises RequestError that names the field.

    It is {"type": "content", "content": ...}, the content a text or a list of text parts.
    """
    value = fields.get("prediction")
    if value is None:
        return request
    if not is_object(value):
        raise RequestError("prediction must be an object with type and content", "prediction")
    if value.get("type") != "content":
        raise RequestError('prediction.type must be "content"', "prediction.type")
    text = text_of(value.get("content"), "prediction.content")
    return replace(request, prediction=text)
