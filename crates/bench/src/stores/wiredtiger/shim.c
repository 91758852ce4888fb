/*
 * The part of WiredTiger's interface that the adapter uses, as plain functions: its own is structs
 * of function pointers and calls with variable arguments, whose layout only its header knows.
 *
 * Every function gives 0, WT_NOTFOUND or an error code of the library. Keys and values are raw
 * items (key_format and value_format "u"). What is read stays where it is until the next call for
 * the same cursor.
 */

#include <stddef.h>
#include <stdint.h>
#include <wiredtiger.h>

#define UNUSED(argument) (void)(argument)

/* Messages of the library come back as error codes too: nothing of ours goes to a terminal. */
static int quiet_error(WT_EVENT_HANDLER *handler, WT_SESSION *session, int error,
    const char *message)
{
    UNUSED(handler);
    UNUSED(session);
    UNUSED(error);
    UNUSED(message);
    return 0;
}

static WT_EVENT_HANDLER handler = { quiet_error, NULL, NULL, NULL };

int chelonia_wt_not_found(void)
{
    return WT_NOTFOUND;
}

int chelonia_wt_open(const char *home, const char *config, WT_CONNECTION **connection)
{
    return wiredtiger_open(home, &handler, config, connection);
}

int chelonia_wt_close(WT_CONNECTION *connection)
{
    return connection->close(connection, NULL);
}

int chelonia_wt_session(WT_CONNECTION *connection, WT_SESSION **session)
{
    return connection->open_session(connection, NULL, NULL, session);
}

int chelonia_wt_session_close(WT_SESSION *session)
{
    return session->close(session, NULL);
}

int chelonia_wt_create(WT_SESSION *session, const char *table, const char *config)
{
    return session->create(session, table, config);
}

int chelonia_wt_checkpoint(WT_SESSION *session)
{
    return session->checkpoint(session, NULL);
}

int chelonia_wt_cursor(WT_SESSION *session, const char *table, WT_CURSOR **cursor)
{
    return session->open_cursor(session, table, NULL, NULL, cursor);
}

/* The bytes written to the log since the connection was opened. */
int chelonia_wt_log_bytes(WT_SESSION *session, uint64_t *bytes)
{
    const char *description, *text;
    int64_t value;
    WT_CURSOR *cursor;
    int code, closed;

    code = session->open_cursor(session, "statistics:", NULL, "statistics=(fast)", &cursor);
    if (code != 0)
        return code;
    cursor->set_key(cursor, WT_STAT_CONN_LOG_BYTES_WRITTEN);
    code = cursor->search(cursor);
    if (code == 0)
        code = cursor->get_value(cursor, &description, &text, &value);
    if (code == 0)
        *bytes = value < 0 ? 0 : (uint64_t)value;
    closed = cursor->close(cursor);
    return code != 0 ? code : closed;
}

static void place(WT_CURSOR *cursor, const void *key, size_t key_bytes)
{
    WT_ITEM item = { 0 };

    item.data = key;
    item.size = key_bytes;
    /* The library copies the item, not what it points to: the next call is made before that goes. */
    cursor->set_key(cursor, &item);
}

int chelonia_wt_insert(WT_CURSOR *cursor, const void *key, size_t key_bytes, const void *value,
    size_t value_bytes)
{
    WT_ITEM item = { 0 };

    item.data = value;
    item.size = value_bytes;
    place(cursor, key, key_bytes);
    cursor->set_value(cursor, &item);
    return cursor->insert(cursor);
}

int chelonia_wt_remove(WT_CURSOR *cursor, const void *key, size_t key_bytes)
{
    place(cursor, key, key_bytes);
    return cursor->remove(cursor);
}

int chelonia_wt_search(WT_CURSOR *cursor, const void *key, size_t key_bytes)
{
    place(cursor, key, key_bytes);
    return cursor->search(cursor);
}

/* To the first entry whose key is not less; WT_NOTFOUND behind the last. */
int chelonia_wt_seek(WT_CURSOR *cursor, const void *key, size_t key_bytes)
{
    int code, order;

    place(cursor, key, key_bytes);
    code = cursor->search_near(cursor, &order);
    if (code == 0 && order < 0)
        code = cursor->next(cursor);
    return code;
}

int chelonia_wt_next(WT_CURSOR *cursor)
{
    return cursor->next(cursor);
}

/* The entry where the cursor stands. */
int chelonia_wt_entry(WT_CURSOR *cursor, const void **key, size_t *key_bytes, const void **value,
    size_t *value_bytes)
{
    WT_ITEM item;
    int code;

    code = cursor->get_key(cursor, &item);
    if (code != 0)
        return code;
    *key = item.data;
    *key_bytes = item.size;
    code = cursor->get_value(cursor, &item);
    if (code != 0)
        return code;
    *value = item.data;
    *value_bytes = item.size;
    return 0;
}

/* Lets go of the page that the cursor stands on. */
int chelonia_wt_reset(WT_CURSOR *cursor)
{
    return cursor->reset(cursor);
}
