// Postgres' driver of Java: metadata, prepared statements in text and binary, fetching in parts,
// cancelling. Arguments: the URL and the password.

import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;

public class Jdbc {
    public static void main(String[] arguments) throws SQLException {
        try (Connection session = DriverManager.getConnection(arguments[0], "ada", arguments[1])) {
            int tables = metadata(session.getMetaData());
            // After five times the driver prepares a statement and asks for binary values.
            for (int time = 0; time < 8; time++) {
                prepared(session);
            }
            inParts(session);
            failures(session);
            timeout(session);
            System.out.println(tables + " tables and views, prepared statements, parts, failures, a timeout");
        }
    }

    static void expect(Object seen, Object wanted) {
        if (!seen.equals(wanted)) {
            throw new AssertionError(seen + ", not " + wanted);
        }
    }

    static int metadata(DatabaseMetaData about) throws SQLException {
        expect(about.getDatabaseProductName(), "PostgreSQL");
        List<String> tables = new ArrayList<>();
        try (ResultSet found = about.getTables(null, "public", "%", new String[] {"TABLE", "VIEW"})) {
            while (found.next()) {
                tables.add(found.getString("TABLE_NAME"));
            }
        }
        expect(tables.contains("jobs"), true);
        List<String> columns = new ArrayList<>();
        try (ResultSet found = about.getColumns(null, "public", "jobs", "%")) {
            while (found.next()) {
                columns.add(found.getString("COLUMN_NAME") + " " + found.getString("TYPE_NAME"));
            }
        }
        expect(columns.contains("job_id text"), true);
        expect(columns.contains("start_time timestamptz"), true);
        return tables.size();
    }

    static void prepared(Connection session) throws SQLException {
        String sql = "SELECT job_id, gpus_milli, start_time FROM jobs WHERE gpus_milli > ? AND team = ? ORDER BY job_id";
        try (PreparedStatement statement = session.prepareStatement(sql)) {
            statement.setLong(1, 1000);
            statement.setString(2, "vision");
            try (ResultSet rows = statement.executeQuery()) {
                expect(rows.next(), true);
                expect(rows.getString(1), "2");
                expect(rows.getLong(2), 8000L);
                expect(rows.getTimestamp(3).toInstant().toString(), "2024-03-01T00:30:00Z");
                expect(rows.next(), false);
            }
        }
    }

    static void inParts(Connection session) throws SQLException {
        session.setAutoCommit(false);
        try (Statement statement = session.createStatement()) {
            statement.setFetchSize(1000);
            long rows = 0;
            long sum = 0;
            try (ResultSet values = statement.executeQuery("SELECT value FROM generate_series(1, 25000)")) {
                while (values.next()) {
                    rows++;
                    sum += values.getLong(1);
                }
            }
            expect(rows, 25000L);
            expect(sum, 25000L * 25001 / 2);
        }
        session.commit();
        session.setAutoCommit(true);
    }

    static void failures(Connection session) throws SQLException {
        try (Statement statement = session.createStatement()) {
            statement.executeQuery("SELECT * FROM nothing");
            throw new AssertionError("there is no such table");
        } catch (SQLException error) {
            expect(error.getSQLState(), "42P01");
        }
    }

    static void timeout(Connection session) throws SQLException {
        try (Statement statement = session.createStatement()) {
            statement.setQueryTimeout(1);
            statement.executeQuery(
                "SELECT count(*) FROM generate_series(1, 3000000) a, generate_series(1, 3000000) b WHERE a.value <> b.value + 1");
            throw new AssertionError("an endless query ended");
        } catch (SQLException error) {
            expect(error.getSQLState(), "57014");
        }
    }
}
